CREATE TABLE IF NOT EXISTS `idem_records_migrations` (version INT NOT NULL PRIMARY KEY, applied_at BIGINT NOT NULL, compatible_since BIGINT) ENGINE = InnoDB;

-- Records of idempotent calls. Times are in microseconds since 1970-01-01 UTC, by the server's clock. Durations are in
-- microseconds. A store with another table name or database replaces every `idem_records` below by that name.

CREATE TABLE IF NOT EXISTS `idem_records` (
    id BINARY(32) NOT NULL PRIMARY KEY,     -- SHA-256 over scope, operation and key
    scope MEDIUMTEXT NOT NULL,              -- empty for none
    operation VARCHAR(255) NOT NULL,
    idempotency_key VARCHAR(255) NOT NULL,
    fingerprint VARBINARY(37) NOT NULL,     -- version, id of the secret, hash
    state VARCHAR(16) NOT NULL,             -- running, released, completed, failed, unrecorded, interrupted
    claim_id VARBINARY(16),                 -- null after a release or a resolution by an operator
    fencing_token BIGINT NOT NULL,          -- never decreases
    attempt BIGINT NOT NULL,
    lease_until BIGINT NOT NULL,
    retention BIGINT NOT NULL,
    on_crash VARCHAR(16) NOT NULL,          -- rerun, refuse, reconcile
    codec VARCHAR(255),
    payload LONGBLOB,
    first_claimed_at BIGINT NOT NULL,
    ended_at BIGINT,                        -- time at which the record ended or was released
    purge_after BIGINT,                     -- time from which a purge checks it; null if it stays until resolved
    -- The column is set at the claim, so that completing a record does not write this index.
    KEY purge_queue (purge_after)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Saved steps of calls. A step is stored as long as its record: the statements that delete a record delete its steps and
-- its recovery input. There is no foreign key, because Group Replication refuses to write tables with keys that cascade
-- if several members accept writes.
CREATE TABLE IF NOT EXISTS `idem_records_steps` (
    id BINARY(32) NOT NULL,                 -- of the record
    name VARBINARY(255) NOT NULL,           -- UTF-8, unique in its record; a text type would ignore trailing blanks
    first_claimed_at BIGINT NOT NULL,       -- as in the record; a row of an earlier generation is replaced
    codec VARCHAR(255) NOT NULL,
    payload LONGBLOB NOT NULL,
    PRIMARY KEY (id, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Recovery inputs of calls. An input is stored until its record has an outcome.
CREATE TABLE IF NOT EXISTS `idem_records_recovery` (
    id BINARY(32) NOT NULL PRIMARY KEY,     -- of the record
    first_claimed_at BIGINT NOT NULL,       -- as in the record; a row of an earlier generation is ignored
    operation VARBINARY(255) NOT NULL,      -- UTF-8; a text type would ignore trailing blanks
    codec VARCHAR(255) NOT NULL,
    payload LONGBLOB NOT NULL,
    recover_after BIGINT NOT NULL,          -- time from which recovery checks whether the owner crashed
    recoveries BIGINT NOT NULL,             -- number of times that the call was retried
    KEY recovery_due (operation, recover_after)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Fencing floor: the fencing tokens of first claims are above this number. A record may be deleted, and claimed again
-- within one tick of the clock or after the clock was set back. It must not get a fencing token that a paused owner of
-- the deleted record still has. A purge first raises the floor to the highest fencing token that it is about to delete.
-- No trigger does this, because creating one takes privileges that an application seldom has (TRIGGER, and SUPER with
-- binary logging). If you delete rows by hand, raise the floor by hand first, and delete the
-- rows of the same id in the tables of steps and recovery inputs.
CREATE TABLE IF NOT EXISTS `idem_records_fencing_floor` (
    one TINYINT NOT NULL PRIMARY KEY CHECK (one = 1),
    fencing_token BIGINT NOT NULL
) ENGINE = InnoDB;

INSERT INTO `idem_records_fencing_floor` (one, fencing_token) VALUES (1, 0)
ON DUPLICATE KEY UPDATE fencing_token = `idem_records_fencing_floor`.fencing_token;

INSERT INTO `idem_records_migrations` (version, compatible_since, applied_at) VALUES (1, 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));

CREATE TABLE IF NOT EXISTS `idem_records_migrations` (version INT NOT NULL PRIMARY KEY, applied_at BIGINT NOT NULL, compatible_since BIGINT) ENGINE = InnoDB;

-- Attempts of calls, for operators: who made them, and how they ended. Processes of the version before leave these
-- columns null. One statement adds all columns, so that it adds all or none. MySQL has no `IF NOT EXISTS` for columns:
-- if the columns exist, the migration ignores the error.
ALTER TABLE `idem_records`
    ADD COLUMN owner VARCHAR(120),          -- label of the owner of the current or last attempt
    ADD COLUMN attempt_began_at BIGINT,     -- null if the attempt began with the first claim
    ADD COLUMN history MEDIUMTEXT,          -- earlier attempts, one line each
    ADD COLUMN members VARBINARY(1024);     -- digests of the request's members

INSERT INTO `idem_records_migrations` (version, compatible_since, applied_at) VALUES (2, 2, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));

CREATE TABLE IF NOT EXISTS `idem_records_migrations` (version INT NOT NULL PRIMARY KEY, applied_at BIGINT NOT NULL, compatible_since BIGINT) ENGINE = InnoDB;

-- Audit of manual changes: who changed which records, and why. Entries outlive their records, and no process changes or
-- deletes them. The key finds the entries of one record; all others are read by number, the newest first.
CREATE TABLE IF NOT EXISTS `idem_records_audit` (
    entry BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    made_at BIGINT NOT NULL,
    actor VARCHAR(120) NOT NULL,
    reason VARCHAR(1000) NOT NULL,
    action VARCHAR(16) NOT NULL,            -- completed, failed, unrecorded, released, interrupted, erased, purged
    id BINARY(32),                          -- of the record; null for a purge, like the next six columns
    scope MEDIUMTEXT,
    operation VARCHAR(255),
    idempotency_key VARCHAR(255),
    state VARCHAR(16),                      -- before the change, like the next two columns
    fencing_token BIGINT,
    attempt BIGINT,
    removed BIGINT,                         -- counts of a purge, null for all others
    abandoned BIGINT,
    interrupted BIGINT,
    KEY audit_of (id, entry)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

INSERT INTO `idem_records_migrations` (version, compatible_since, applied_at) VALUES (3, 3, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));

CREATE TABLE IF NOT EXISTS `idem_records_migrations` (version INT NOT NULL PRIMARY KEY, applied_at BIGINT NOT NULL, compatible_since BIGINT) ENGINE = InnoDB;

-- Time for which the payload of a record is kept, if it is shorter than the retention. Processes of the version before leave
-- the column null. MySQL has no `IF NOT EXISTS` for columns: if the column exists, the migration ignores the error.
ALTER TABLE `idem_records` ADD COLUMN payload_for BIGINT;

INSERT INTO `idem_records_migrations` (version, compatible_since, applied_at) VALUES (4, 4, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));

CREATE TABLE IF NOT EXISTS `idem_records_migrations` (version INT NOT NULL PRIMARY KEY, applied_at BIGINT NOT NULL, compatible_since BIGINT) ENGINE = InnoDB;

-- Names of the operations that had records. Scope, operation and key give the id of a record, so that an operator finds a
-- key in all operations without an index. Each process writes the name of an operation once.
CREATE TABLE IF NOT EXISTS `idem_records_operations` (
    name VARBINARY(255) NOT NULL PRIMARY KEY    -- UTF-8; a text type would ignore trailing blanks
) ENGINE = InnoDB;

INSERT INTO `idem_records_migrations` (version, compatible_since, applied_at) VALUES (5, 5, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));

CREATE TABLE IF NOT EXISTS `idem_records_migrations` (version INT NOT NULL PRIMARY KEY, applied_at BIGINT NOT NULL, compatible_since BIGINT) ENGINE = InnoDB;

-- Hashes of the content that a manual change replaced and stored, and the user of the database who made it. Entries of the
-- versions before have none. One statement adds all columns or none. If they exist, the migration ignores the error.
--
-- Compatible since version 5.
ALTER TABLE `idem_records_audit`
    ADD COLUMN old_value BINARY(32),
    ADD COLUMN new_value BINARY(32),
    ADD COLUMN database_user VARCHAR(400);

INSERT INTO `idem_records_migrations` (version, compatible_since, applied_at) VALUES (6, 5, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));

CREATE TABLE IF NOT EXISTS `idem_outbox_migrations` (version INT NOT NULL PRIMARY KEY, applied_at BIGINT NOT NULL, compatible_since BIGINT) ENGINE = InnoDB;

-- Messages that wait for a relay. Times are in microseconds since 1970-01-01 UTC, by the server's clock. An outbox with
-- another table name or database replaces every `idem_outbox` below by that name.

CREATE TABLE IF NOT EXISTS `idem_outbox` (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,  -- order of enqueuing
    -- Key by which a consumer recognises duplicates. A text type would ignore trailing blanks.
    message_key VARBINARY(255) NOT NULL,
    topic VARCHAR(255) NOT NULL,
    ordering_key VARCHAR(255),          -- null if order does not matter
    payload LONGTEXT NOT NULL,          -- JSON
    headers LONGTEXT,                   -- JSON object of strings
    state VARCHAR(16) NOT NULL,         -- waiting, delivered, parked
    attempt BIGINT NOT NULL,            -- number of claims by relays
    claim_id VARBINARY(16),             -- claim id of the relay that delivers the message; null if none does
    due_at BIGINT,                      -- while waiting: end of the delay, pause or lease
    enqueued_at BIGINT NOT NULL,
    parked_at BIGINT,
    purge_after BIGINT,                 -- of a delivered message: time from which it is deleted
    last_error TEXT,
    is_ordered TINYINT GENERATED ALWAYS AS (ordering_key IS NOT NULL) VIRTUAL,
    undelivered_key VARCHAR(255)
        GENERATED ALWAYS AS (CASE WHEN state <> 'delivered' THEN ordering_key END) VIRTUAL,
    UNIQUE KEY message_key (message_key),
    -- Separates messages with an ordering key from those without one. A poll for messages without a key then never
    -- reads messages that wait behind others.
    KEY due (topic, is_ordered, due_at, id),
    -- Finds the first waiting and the first parked message of an ordering key, and the next ordering key. Delivered
    -- messages have no key here.
    KEY ordering (undelivered_key, state, id),
    KEY parked (parked_at),
    KEY purge_queue (purge_after)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

INSERT INTO `idem_outbox_migrations` (version, compatible_since, applied_at) VALUES (1, 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));

CREATE TABLE IF NOT EXISTS `idem_outbox_migrations` (version INT NOT NULL PRIMARY KEY, applied_at BIGINT NOT NULL, compatible_since BIGINT) ENGINE = InnoDB;

-- Audit of manual changes of parked messages: who requeued or discarded which message, and why. No process changes or
-- deletes entries. They are read by number, the newest first.
CREATE TABLE IF NOT EXISTS `idem_outbox_audit` (
    entry BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    made_at BIGINT NOT NULL,
    actor VARCHAR(120) NOT NULL,
    reason VARCHAR(1000) NOT NULL,
    action VARCHAR(16) NOT NULL,        -- requeued, discarded
    message_key VARBINARY(255) NOT NULL, -- a text type would ignore trailing blanks
    topic VARCHAR(255) NOT NULL,
    ordering_key VARCHAR(255),
    attempt BIGINT NOT NULL,            -- number of claims by relays, before the change
    enqueued_at BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

INSERT INTO `idem_outbox_migrations` (version, compatible_since, applied_at) VALUES (2, 2, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));

-- Rows. The times are relative to the load, see README.md.
INSERT INTO `idem_outbox` (`id`, `message_key`, `topic`, `ordering_key`, `payload`, `headers`, `state`, `attempt`, `claim_id`, `due_at`, `enqueued_at`, `parked_at`, `purge_after`, `last_error`) VALUES
(1, X'6D2D31', 'order.placed', NULL, '{"order":7,"text":"Käse \'n\' Brot","number":1}', NULL, 'waiting', 0, NULL, <t:0m@81>, <t:0m@81>, NULL, NULL, NULL),
(2, X'6D2D32', 'order.placed', 'order \'7\'', '{"order":7,"text":"Käse \'n\' Brot","number":2}', '{"trace":"00-ab \\"c\\""}', 'waiting', 0, NULL, <t:0m@82>, <t:0m@82>, NULL, NULL, NULL),
(3, X'6D2D33', 'order.placed', 'order \'7\'', '{"order":7,"text":"Käse \'n\' Brot","number":3}', NULL, 'waiting', 0, NULL, <t:0m@83>, <t:0m@83>, NULL, NULL, NULL),
(4, X'64656C697665726564', 'order.handled', NULL, '"delivered"', NULL, 'delivered', 1, NULL, NULL, <t:0m@84>, NULL, <t:525600m@85>, NULL),
(5, X'7061726B6564', 'order.handled', NULL, '"parked"', NULL, 'parked', 1, NULL, NULL, <t:0m@86>, <t:0m@87>, NULL, 'no stamps'),
(6, X'7265717565756564', 'order.handled', NULL, '"requeued"', NULL, 'waiting', 0, NULL, <t:0m@92>, <t:0m@88>, NULL, NULL, 'no stamps');
INSERT INTO `idem_outbox_audit` (`entry`, `made_at`, `actor`, `reason`, `action`, `message_key`, `topic`, `ordering_key`, `attempt`, `enqueued_at`) VALUES
(1, <t:0m@92>, 'ann@desk', 'asked the bank: \'not charged\'', 'requeued', X'7265717565756564', 'order.handled', NULL, 1, <t:0m@88>),
(2, <t:0m@93>, 'ann@desk', 'asked the bank: \'not charged\'', 'discarded', X'646973636172646564', 'order.handled', NULL, 1, <t:0m@90>);
INSERT INTO `idem_records` (`id`, `scope`, `operation`, `idempotency_key`, `fingerprint`, `state`, `claim_id`, `fencing_token`, `attempt`, `lease_until`, `retention`, `on_crash`, `codec`, `payload`, `first_claimed_at`, `ended_at`, `purge_after`, `owner`, `attempt_began_at`, `history`, `members`, `payload_for`) VALUES
(X'00BF58660378A8028CF92552DDA5D6A067D50C2E89A85E2828DE7CEDAA296435', '', 'charges.create', 'lapsed-after-steps', X'01000000004B4BACDB55067F68AB8B0EDB1BE62705BED205FA74C316F76687CD22D642C3E1', 'running', X'00BF58660378A8028CF92552DDA5D6A0', <t:0m@30>, 1, <t:0m@33>, 31536000000000, 'rerun', NULL, NULL, <t:0m@30>, NULL, <t:527040m@30>, 'web-1', NULL, NULL, NULL, NULL),
(X'0325DE9F4977709F67D978349C0992E43DC497D8C76B6FA6E424165D7D4F2841', '', 'charges.create', 'failed-json', X'0100000000A3DEA044AA411D7B0F5D42C7EFD3618B19F7F30C62BC42E6D01E7435E923B88A', 'failed', X'0325DE9F4977709F67D978349C0992E4', <t:0m@13>, 1, <t:1440m@13>, 31536000000000, 'rerun', 'json/1', X'7B224465636C696E6564223A7B22636F6465223A35317D7D', <t:0m@13>, <t:0m@14>, <t:527040m@13>, 'web-1', NULL, NULL, NULL, NULL),
(X'08C769C093DDA67F0C1117C9D0BDA20C7A67B01BE725FCF8E118BB762B91F152', '', 'charges.create', 'signed', X'01B49FE7EA8E2AD5F9D29A491BD3A810586C098FD5846CACF907702F20C7FBC065BA9D3A8B', 'completed', X'08C769C093DDA67F0C1117C9D0BDA20C', <t:0m@9>, 1, <t:1440m@9>, 31536000000000, 'rerun', 'json/1', X'7B226E756D626572223A22722D7369676E6564222C2263656E7473223A31383434363734343037333730393535313631352C2272617465223A302E312C226C696E6573223A5B5B22746561222C2D335D2C5B224BC3A4736520276E27205C2242726F745C22222C305D5D2C226E6F7465223A6E756C6C7D', <t:0m@9>, <t:0m@10>, <t:527040m@9>, 'web-1', NULL, NULL, X'01038E2AD5F9D523E9D90F9FD09902885C840AD8DF5A7D0C1344A7ACE343', NULL),
(X'1FF40434B51F7738C7D65F54E3939290B74124BDB7BE57AAE3EA6455CEE47054', '', 'charges.create', 'interrupted', X'0100000000B8D15863600BD36FFA77C90FADBCBE34E8F956FB6C4C7801296146500B15A415', 'interrupted', X'1FF40434B51F7738C7D65F54E3939290', <t:0m@21>, 1, <t:1440m@21>, 31536000000000, 'refuse', NULL, NULL, <t:0m@21>, NULL, NULL, 'web-1', NULL, NULL, NULL, NULL),
(X'2A7CAF66E09AA7B611DD175D88765562159C6A7C99486EA393DFF568EDE892B4', '', 'charges.create', 'failed-cbor', X'010000000033BEF51471383646AB2092F0D210E9F89E6B7D28A0116C27948871389F844FD1', 'failed', X'2A7CAF66E09AA7B611DD175D88765562', <t:0m@15>, 1, <t:1440m@15>, 31536000000000, 'rerun', 'cbor/1', X'A1684465636C696E6564A164636F64651833', <t:0m@15>, <t:0m@16>, <t:527040m@15>, 'web-1', NULL, NULL, NULL, NULL),
(X'2A9FD2D22A344F38C251A23AFBA279FF1C58755C41C2F319D3C572A14AE2E053', '', 'charges.create', 'interrupted-reconcile', X'0100000000BEFA1B94767BCF87DF3337C9EEAE79EB4E496AC99F9B46AF715B01C7DF571A17', 'interrupted', X'2A9FD2D22A344F38C251A23AFBA279FF', <t:0m@23>, 1, <t:1440m@23>, 31536000000000, 'reconcile', NULL, NULL, <t:0m@23>, NULL, NULL, 'web-1', NULL, NULL, NULL, NULL),
(X'303448CCE93EC97EEB6B1A48701AC5390D83843D7D7189953A4E4B172AA3F19E', '', 'charges.create', 'running-refuse', X'0100000000991E6B32ADF51859F240A82DCDCF05CFAF7C6EC2070814417E539D749FF9E254', 'running', X'303448CCE93EC97EEB6B1A48701AC539', <t:0m@26>, 1, <t:1440m@26>, 31536000000000, 'refuse', NULL, NULL, <t:0m@26>, NULL, <t:527040m@26>, 'web-1', NULL, NULL, NULL, NULL),
(X'37A141EEAC885D07D61E539619E68383DE3FB9E1638D6B2CE11FA6E8E18ACBEE', '', 'charges.create', 'completed-json', X'0100000000E790F9345775D46A9DE82B52D515F975762ECD6347B3F5CD7442E360DDB64F50', 'completed', X'37A141EEAC885D07D61E539619E68383', <t:0m@1>, 1, <t:1440m@1>, 31536000000000, 'rerun', 'json/1', X'7B226E756D626572223A22722D636F6D706C657465642D6A736F6E222C2263656E7473223A31383434363734343037333730393535313631352C2272617465223A302E312C226C696E6573223A5B5B22746561222C2D335D2C5B224BC3A4736520276E27205C2242726F745C22222C305D5D2C226E6F7465223A6E756C6C7D', <t:0m@1>, <t:0m@2>, <t:527040m@1>, 'web-1', NULL, NULL, NULL, NULL),
(X'3AA41EC39683E5B4C7EB8A9661593643FD1E2AB17BF8062C34AA3AAC87174184', '', 'charges.create', 'lapsed', X'01000000002A60F5607ADC76D03C60AE638B2A2926E2725099E9FE5783BF529C3DD1C64E10', 'running', X'3AA41EC39683E5B4C7EB8A9661593643', <t:0m@27>, 1, <t:0m@27>, 31536000000000, 'rerun', NULL, NULL, <t:0m@27>, NULL, <t:525600m@27>, 'web-1', NULL, NULL, NULL, NULL),
(X'420FB3A0D1CC985AC4542AC85296F060E95C7D05CC9969F335DCF312C949D936', '', 'charges.create', '223bd69690931980b9244f44e40a9382b07e6b4d66859e82f7ca459d5ec713a0', X'0100000000223BD69690931980B9244F44E40A9382B07E6B4D66859E82F7CA459D5EC713A0', 'completed', X'420FB3A0D1CC985AC4542AC85296F060', <t:0m@7>, 1, <t:1440m@7>, 31536000000000, 'rerun', 'json/1', X'7B226E756D626572223A22722D222C2263656E7473223A31383434363734343037333730393535313631352C2272617465223A302E312C226C696E6573223A5B5B22746561222C2D335D2C5B224BC3A4736520276E27205C2242726F745C22222C305D5D2C226E6F7465223A6E756C6C7D', <t:0m@7>, <t:0m@8>, <t:527040m@7>, 'web-1', NULL, NULL, NULL, NULL),
(X'4852A35F9400EF5EA45C300A169E9214FF324C73C1E5296848411BF589B4FCE2', '', 'charges.create', 'remembered', X'0100000000F60BDA7137620F5B780BBEE2534F7655C0D1CAD23943A9E048C029B89E6FC9FA', 'completed', X'4852A35F9400EF5EA45C300A169E9214', <t:0m@11>, 1, <t:1440m@11>, 63072000000000, 'rerun', 'json/1', X'7B226E756D626572223A22722D72656D656D6265726564222C2263656E7473223A31383434363734343037333730393535313631352C2272617465223A302E312C226C696E6573223A5B5B22746561222C2D335D2C5B224BC3A4736520276E27205C2242726F745C22222C305D5D2C226E6F7465223A6E756C6C7D', <t:0m@11>, <t:0m@12>, <t:525600m@12>, 'web-1', NULL, NULL, NULL, 31536000000000),
(X'54F19120AADA433253395063E24DAF65225EBC027D7584DEFD3276B470B93586', '', 'charges.create', 'completed-cbor', X'0100000000B1E8C0A6253D1C44EFE9C0CCA2AAC355BDE7F4C03907DC980CB0D346558AD9C4', 'completed', X'54F19120AADA433253395063E24DAF65', <t:0m@3>, 1, <t:1440m@3>, 31536000000000, 'rerun', 'cbor/1', X'A5666E756D62657270722D636F6D706C657465642D63626F726563656E74731BFFFFFFFFFFFFFFFF6472617465FB3FB999999999999A656C696E65738282637465612282704BC3A4736520276E27202242726F742200646E6F7465F6', <t:0m@3>, <t:0m@4>, <t:527040m@3>, 'web-1', NULL, NULL, NULL, NULL),
(X'6558B1AAA0A44E531AB8CBC610045DDFBE1C517853C7F059F89E92A143388A4E', '', 'charges.create', 'lapsed-refuse', X'0100000000B626D9AB6304CB420C5019FFF6D49BD0CDB43F1152E22AE91FE9DD8CCC248143', 'running', X'6558B1AAA0A44E531AB8CBC610045DDF', <t:0m@28>, 1, <t:0m@28>, 31536000000000, 'refuse', NULL, NULL, <t:0m@28>, NULL, <t:525600m@28>, 'web-1', NULL, NULL, NULL, NULL),
(X'730040553AE139B84195C0F2F8EF70F0FA955D0B8F6388A9EAC809815D7050BC', '', 'charges.create', 'resolved-unrecorded', X'0100000000D469FD9DDB0355394D33D1EC8FF1683B7916E1EA616D0F54225D9FBBD776385D', 'unrecorded', NULL, <t:0m@56>, 1, <t:1440m@54>, 31536000000000, 'refuse', NULL, NULL, <t:0m@54>, <t:0m@56>, <t:525600m@56>, 'web-1', NULL, '1 <t:0m@54> <t:0m@56> resolved-unrecorded web-1
', NULL, NULL),
(X'73C6DB766AD25C687CB2166CD74C7BAE9D4AF0A8960ED1D53E3300737CBE9AA9', '', 'charges.create', 'many-attempts', X'01000000007D82288310A1DB9252DE564D9AD6D578E3C98CBC7ECEA46DBE3C60A2D49B300E', 'completed', X'73C6DB766AD25C687CB2166CD74C7BAE', <t:0m@43>, 3, <t:1440m@43>, 31536000000000, 'rerun', 'json/1', X'7B226E756D626572223A22722D6D616E792D617474656D707473222C2263656E7473223A31383434363734343037333730393535313631352C2272617465223A302E312C226C696E6573223A5B5B22746561222C2D335D2C5B224BC3A4736520276E27205C2242726F745C22222C305D5D2C226E6F7465223A6E756C6C7D', <t:0m@40>, <t:0m@44>, <t:527040m@43>, 'web-1', <t:0m@43>, '1 <t:0m@40> <t:0m@41> released web-1
2 <t:0m@42> <t:0m@43> lapsed web-2
3 <t:0m@45> <t:0m@45> replayed web-3
', NULL, NULL),
(X'756C4223E53A2D70ECCB74012E5D7B9FE16A9CD4DC35AD49F5ECCE705AA882F5', '', 'charges.create', 'released', X'01000000009A382B8F4401139D4E1133D79CC17C4CDE11E5A20F0CEE195F938F4B1635143D', 'released', NULL, <t:0m@19>, 1, <t:1440m@19>, 31536000000000, 'rerun', NULL, NULL, <t:0m@19>, <t:0m@20>, <t:527040m@19>, 'web-1', NULL, '1 <t:0m@19> <t:0m@20> released web-1
', NULL, NULL),
(X'8BD2598CBD28171E8B9A8A0D5EBF010AF50084D8F71C3BED4353133723A57EB3', '', 'charges.create', 'resolved-completed', X'01000000006836F4534FA884E0C56741236FE50C7617E9B9437579BD423D77F32161EC034C', 'completed', NULL, <t:0m@48>, 1, <t:1440m@46>, 31536000000000, 'refuse', 'json/1', X'7B226E756D626572223A22722D7265736F6C7665642D636F6D706C65746564222C2263656E7473223A31383434363734343037333730393535313631352C2272617465223A302E312C226C696E6573223A5B5B22746561222C2D335D2C5B224BC3A4736520276E27205C2242726F745C22222C305D5D2C226E6F7465223A6E756C6C7D', <t:0m@46>, <t:0m@48>, <t:525600m@48>, 'web-1', NULL, '1 <t:0m@46> <t:0m@48> resolved-completed web-1
', NULL, NULL),
(X'8FA025F032554354DBA8E1A8BBCB2BA94E3E30783B43F517664ACCBB761145AD', '', 'letters.post', 'lapsed-with-input', X'0100000000567064083B0CC28281A3E3DAA3BECC0DCD9B6359375AAC8C337C2AE2412FDDDD', 'running', X'8FA025F032554354DBA8E1A8BBCB2BA9', <t:0m@34>, 1, <t:0m@36>, 31536000000000, 'rerun', NULL, NULL, <t:0m@34>, NULL, <t:527040m@34>, 'web-1', NULL, NULL, NULL, NULL),
(X'94455297811A51BD0E78283B4928CA428469FB068DBD2DA8E56BB0EE7D4DFAA6', 'tenant-1/ünïcode \'"', 'charges.create', 'it\'s "1"', X'0100000000507CED833283A0367A11A969D4ED4817BC5FFE6A89807D56E3EA51CC4F3DD0C1', 'completed', X'94455297811A51BD0E78283B4928CA42', <t:0m@5>, 1, <t:1440m@5>, 31536000000000, 'rerun', 'json/1', X'7B226E756D626572223A22722D69742773205C22315C22222C2263656E7473223A31383434363734343037333730393535313631352C2272617465223A302E312C226C696E6573223A5B5B22746561222C2D335D2C5B224BC3A4736520276E27205C2242726F745C22222C305D5D2C226E6F7465223A6E756C6C7D', <t:0m@5>, <t:0m@6>, <t:527040m@5>, 'web-1', NULL, NULL, NULL, NULL),
(X'9B8EA665788542169B88B93FE97F72629FF65DB8EB0575E020320DAA3F60AD43', '', 'charges.create', 'resolved-interrupted', X'01000000007120BFB1B3C7C6F5A8181F9CC979BDC3419AEDBAAEFE4F4BE8B39B471BEA75F1', 'interrupted', X'9B8EA665788542169B88B93FE97F7262', <t:0m@62>, 1, <t:0m@62>, 31536000000000, 'refuse', NULL, NULL, <t:0m@62>, NULL, NULL, 'web-1', NULL, NULL, NULL, NULL),
(X'9FE5A8386B4E469A053F577074E932533AF923D7E7D633AE2A421BCBA4146963', '', 'charges.create', 'resolved-released', X'010000000013C6917EB9780211941259505151B62233CE50551CDC3A43AE7601A1AC7068ED', 'released', NULL, <t:0m@60>, 1, <t:1440m@58>, 31536000000000, 'refuse', NULL, NULL, <t:0m@58>, <t:0m@60>, <t:525600m@60>, 'web-1', NULL, '1 <t:0m@58> <t:0m@60> resolved-released web-1
', NULL, NULL),
(X'ADF999E641305ACEBCBCF5CC86219291E4C8BF8794A6CD73EAAF533045D591BE', '', 'charges.create', 'lapsed-reconcile', X'0100000000308A8937E9DB3E67B4CC25F215BDFDE3C5B5A0F62E68B349F543CBB30319BAF0', 'running', X'ADF999E641305ACEBCBCF5CC86219291', <t:0m@29>, 1, <t:0m@29>, 31536000000000, 'reconcile', NULL, NULL, <t:0m@29>, NULL, <t:525600m@29>, 'web-1', NULL, NULL, NULL, NULL),
(X'B72610DD6272515D21F4DE51F9E084E41EA2F5A91593D7CE513FDEDB23F6D633', '', 'charges.create', 'forgotten', X'0100000000A3EAE061CC339B66ACC845709193FC2F743AD9FBAC40FA86B343488CD3894195', 'completed', X'B72610DD6272515D21F4DE51F9E084E4', <t:0m@37>, 1, <t:1440m@37>, 31536000000000, 'rerun', NULL, NULL, <t:0m@37>, <t:0m@38>, <t:525600m@38>, 'web-1', NULL, NULL, NULL, 1000),
(X'DDE8DC6BE9C9BE474B4079BF78089BF6B3516CE96F9A8B8B7221122ABC8B791F', '', 'charges.create', 'running', X'0100000000CA4C125B802DBC18AEF6CCD9A7D3BF5D8248F4858339544ACA29C1C04E45F12B', 'running', X'DDE8DC6BE9C9BE474B4079BF78089BF6', <t:0m@25>, 1, <t:1440m@25>, 31536000000000, 'rerun', NULL, NULL, <t:0m@25>, NULL, <t:527040m@25>, 'web-1', NULL, NULL, NULL, NULL),
(X'EEBA96DE1E2DD7807D8AB3F8C0B14D148778F754F0C41F4CD09B8E45CEBA639D', '', 'charges.create', 'unrecorded', X'01000000004232836CAD9A8D8E32AE2429B29F04FECC783CFEA43CE8301A475D570B11CD07', 'unrecorded', X'EEBA96DE1E2DD7807D8AB3F8C0B14D14', <t:0m@17>, 1, <t:1440m@17>, 31536000000000, 'rerun', NULL, NULL, <t:0m@17>, <t:0m@18>, <t:527040m@17>, 'web-1', NULL, NULL, NULL, NULL),
(X'F1B4AB9A2FBC8D9C4327E8640B16D6DBDC08AAC4426D57DE48B3229D0D42D26F', '', 'charges.create', 'resolved-failed', X'01000000004D21C34A35220DFEDEC84CC70135B8A299F4222385402F1A13E71DF3E1BB7C2A', 'failed', NULL, <t:0m@52>, 1, <t:1440m@50>, 31536000000000, 'refuse', 'json/1', X'7B224465636C696E6564223A7B22636F6465223A35317D7D', <t:0m@50>, <t:0m@52>, <t:525600m@52>, 'web-1', NULL, '1 <t:0m@50> <t:0m@52> resolved-failed web-1
', NULL, NULL),
(X'F6F7A68F6B09C1E63ADC1FFD8B4DDD42B89813BC05EF78111925CB3E28C1EAEE', '', 'charges.create', 'resolved-corrected', X'0100000000B1BE388E2DBCBCD2BDBA5352D14BFC466C0FE6873EC3B0EEC6A5B511768B3AFA', 'completed', NULL, <t:0m@72>, 1, <t:1440m@69>, 31536000000000, 'refuse', 'json/1', X'7B226E756D626572223A22722D7265736F6C7665642D636F72726563746564222C2263656E7473223A31383434363734343037333730393535313631352C2272617465223A302E312C226C696E6573223A5B5B22746561222C2D335D2C5B224BC3A4736520276E27205C2242726F745C22222C305D5D2C226E6F7465223A6E756C6C7D', <t:0m@69>, <t:0m@71>, <t:525600m@71>, 'web-1', NULL, '1 <t:0m@69> <t:0m@71> resolved-completed web-1
', NULL, NULL);
INSERT INTO `idem_records_audit` (`entry`, `made_at`, `actor`, `reason`, `action`, `id`, `scope`, `operation`, `idempotency_key`, `state`, `fencing_token`, `attempt`, `removed`, `abandoned`, `interrupted`, `old_value`, `new_value`, `database_user`) VALUES
(1, <t:0m@48>, 'ann@desk', 'asked the bank: \'not charged\'', 'completed', X'8BD2598CBD28171E8B9A8A0D5EBF010AF50084D8F71C3BED4353133723A57EB3', '', 'charges.create', 'resolved-completed', 'interrupted', <t:0m@46>, 1, NULL, NULL, NULL, NULL, X'0490B4FD49FB29F232EE942AB60A8F9E7CDE899E5B100E9853CE0089ABAF3316', 'service'),
(2, <t:0m@52>, 'ann@desk', 'asked the bank: \'not charged\'', 'failed', X'F1B4AB9A2FBC8D9C4327E8640B16D6DBDC08AAC4426D57DE48B3229D0D42D26F', '', 'charges.create', 'resolved-failed', 'interrupted', <t:0m@50>, 1, NULL, NULL, NULL, NULL, X'859C1EBCFD7883E40318330F9D781F48097DD98D1E7963FA15123B969EEAC807', 'service'),
(3, <t:0m@56>, 'ann@desk', 'asked the bank: \'not charged\'', 'unrecorded', X'730040553AE139B84195C0F2F8EF70F0FA955D0B8F6388A9EAC809815D7050BC', '', 'charges.create', 'resolved-unrecorded', 'interrupted', <t:0m@54>, 1, NULL, NULL, NULL, NULL, NULL, 'service'),
(4, <t:0m@60>, 'ann@desk', 'asked the bank: \'not charged\'', 'released', X'9FE5A8386B4E469A053F577074E932533AF923D7E7D633AE2A421BCBA4146963', '', 'charges.create', 'resolved-released', 'interrupted', <t:0m@58>, 1, NULL, NULL, NULL, NULL, NULL, 'service'),
(5, <t:0m@63>, 'ann@desk', 'asked the bank: \'not charged\'', 'interrupted', X'9B8EA665788542169B88B93FE97F72629FF65DB8EB0575E020320DAA3F60AD43', '', 'charges.create', 'resolved-interrupted', 'running', <t:0m@62>, 1, NULL, NULL, NULL, NULL, NULL, 'service'),
(6, <t:0m@67>, 'ann@desk', 'asked the bank: \'not charged\'', 'erased', X'0C2C901DA866A54223AD52510247B2554C2B04D24CD38488D95232971E5B5EFD', '', 'charges.create', 'resolved-erased', 'interrupted', <t:0m@65>, 1, NULL, NULL, NULL, NULL, NULL, 'service'),
(7, <t:0m@71>, 'ann@desk', 'asked the bank: \'not charged\'', 'completed', X'F6F7A68F6B09C1E63ADC1FFD8B4DDD42B89813BC05EF78111925CB3E28C1EAEE', '', 'charges.create', 'resolved-corrected', 'interrupted', <t:0m@69>, 1, NULL, NULL, NULL, NULL, X'BA0FA59F1F09C8CCCF868CF1AEB4832FD36A38DFB3718546172CCAE4B2A225B0', 'service'),
(8, <t:0m@72>, 'ann@desk', 'asked the bank: \'not charged\'', 'corrected', X'F6F7A68F6B09C1E63ADC1FFD8B4DDD42B89813BC05EF78111925CB3E28C1EAEE', '', 'charges.create', 'resolved-corrected', 'completed', <t:0m@71>, 1, NULL, NULL, NULL, X'BA0FA59F1F09C8CCCF868CF1AEB4832FD36A38DFB3718546172CCAE4B2A225B0', X'442FEFD11BDBE70F037290C0C0F7F0D58D2713ECB28D7AD08AE79F3493DF6558', 'service'),
(9, <t:0m@76>, 'ann@desk', 'asked the bank: \'not charged\'', 'erased_scope', X'E5156DDE847F2245495950A2F2411AD99E8175FF86455944310BA263D6810AF3', NULL, NULL, NULL, NULL, 4711, NULL, 1, NULL, NULL, NULL, NULL, 'service'),
(10, <t:0m@79>, 'ann@desk', 'asked the bank: \'not charged\'', 'purged', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1, 1, 0, NULL, NULL, 'service');
DELETE FROM `idem_records_fencing_floor`;
INSERT INTO `idem_records_fencing_floor` (`one`, `fencing_token`) VALUES
(1, <t:0m@79>);
INSERT INTO `idem_records_operations` (`name`) VALUES
(X'636861726765732E637265617465'),
(X'6C6574746572732E706F7374');
INSERT INTO `idem_records_recovery` (`id`, `first_claimed_at`, `operation`, `codec`, `payload`, `recover_after`, `recoveries`) VALUES
(X'8FA025F032554354DBA8E1A8BBCB2BA94E3E30783B43F517664ACCBB761145AD', <t:0m@34>, X'6C6574746572732E706F7374', 'json/1', X'7B226C6574746572223A377D', <t:0m@35>, 0);
INSERT INTO `idem_records_steps` (`id`, `name`, `first_claimed_at`, `codec`, `payload`) VALUES
(X'00BF58660378A8028CF92552DDA5D6A067D50C2E89A85E2828DE7CEDAA296435', X'636861726765', <t:0m@30>, 'json/1', X'353030'),
(X'00BF58660378A8028CF92552DDA5D6A067D50C2E89A85E2828DE7CEDAA296435', X'72657365727665', <t:0m@30>, 'json/1', X'2273656174203722');
