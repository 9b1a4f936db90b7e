-- The index of what is due tells ordered messages from others, so that those that wait in the order of their key are
-- never read on the way to those that wait for nobody. The other index finds the first message of an ordering key that
-- waits, the first one that is parked, and the next ordering key; delivered messages that are kept are not in it.
--
-- One statement, which is done or not done, and nothing where it was done before: MySQL has no IF NOT EXISTS for columns.

SET @idem_heads = IF(
    EXISTS (
        SELECT 1 FROM information_schema.columns
        WHERE column_name = 'open_key' AND (
            concat('`', table_schema, '`.`', table_name, '`') = '`idem_outbox`'
            OR (table_schema = database() AND concat('`', table_name, '`') = '`idem_outbox`'))),
    'DO 0',
    'ALTER TABLE `idem_outbox`
        ADD COLUMN is_ordered TINYINT GENERATED ALWAYS AS (ordering_key IS NOT NULL) VIRTUAL,
        ADD COLUMN open_key VARCHAR(255)
            GENERATED ALWAYS AS (CASE WHEN state <> ''delivered'' THEN ordering_key END) VIRTUAL,
        DROP KEY due,
        ADD KEY due (topic, is_ordered, due_at, id),
        DROP KEY ordering,
        ADD KEY ordering (open_key, state, id)'
);
PREPARE idem_heads FROM @idem_heads;
EXECUTE idem_heads;
DEALLOCATE PREPARE idem_heads;
