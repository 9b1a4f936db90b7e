CREATE TABLE IF NOT EXISTS "idem_records_portable" (version bigint NOT NULL PRIMARY KEY, applied_at bigint NOT NULL, compatible_since bigint);

-- Tables of the portable form, for databases that speak PostgreSQL but have no triggers, no PL/pgSQL, no advisory locks or
-- no sequences. Times are in microseconds since 1970-01-01 UTC, by the database's clock. Durations are in microseconds.
-- A store with another table name replaces every "idem_records" below by that name. A store with a schema puts it before
-- the names of the tables.
--
-- Each statement runs on its own, because some databases commit a transaction before a definition. Each statement may be
-- repeated. A statement ends with a semicolon at the end of a line.

-- Applied versions. The first statement creates this table: its existence tells every process that the tables have the
-- portable form.
CREATE TABLE IF NOT EXISTS "idem_records_portable" (
    version bigint NOT NULL PRIMARY KEY,
    applied_at bigint NOT NULL,
    compatible_since bigint             -- number of versions that a release knows to work with this one; null for itself
);

CREATE TABLE IF NOT EXISTS "idem_records" (
    id bytea NOT NULL PRIMARY KEY,      -- SHA-256 over scope, operation and key, 32 bytes
    scope text NOT NULL,                -- empty for none
    operation text NOT NULL,
    idempotency_key text NOT NULL,
    fingerprint bytea NOT NULL,         -- version, id of the secret, hash: 37 bytes
    state text NOT NULL,                -- running, released, completed, failed, unrecorded, interrupted
    claim_id bytea,                     -- 16 bytes; null after a release or a resolution by an operator
    fencing_token bigint NOT NULL,      -- never decreases
    attempt bigint NOT NULL,
    lease_until bigint NOT NULL,
    retention bigint NOT NULL,
    on_crash text NOT NULL,             -- rerun, refuse, reconcile
    codec text,
    payload bytea,
    first_claimed_at bigint NOT NULL,
    ended_at bigint,                    -- time at which the record ended or was released
    purge_after bigint,                 -- time from which a purge checks the record; null if it stays until resolved
    owner text,                         -- label of the owner of the current or last attempt
    attempt_began_at bigint,            -- null if the attempt began with the first claim
    history text,                       -- earlier attempts, one line each
    members bytea                       -- digests of the request's members
);

-- The column is set at the claim, so that completing a record does not write this index. An index on the state would be
-- written at each completion.
CREATE INDEX IF NOT EXISTS "idem_records_purge" ON "idem_records" (purge_after);

-- Saved steps of calls. A step is stored as long as its record.
CREATE TABLE IF NOT EXISTS "idem_records_steps" (
    id bytea NOT NULL,                  -- of the record
    name text NOT NULL,                 -- unique in its record
    first_claimed_at bigint NOT NULL,   -- as in the record; a row of an earlier generation is replaced
    codec text NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (id, name)
);

-- Recovery inputs of calls. An input is stored until its record has an outcome.
CREATE TABLE IF NOT EXISTS "idem_records_recovery" (
    id bytea NOT NULL PRIMARY KEY,      -- of the record
    first_claimed_at bigint NOT NULL,   -- as in the record; a row of an earlier generation is ignored
    operation text NOT NULL,
    codec text NOT NULL,
    payload bytea NOT NULL,
    recover_after bigint NOT NULL,      -- time from which recovery checks whether the owner crashed
    recoveries bigint NOT NULL          -- number of times that the call was retried
);

CREATE INDEX IF NOT EXISTS "idem_records_recovery_due" ON "idem_records_recovery" (operation, recover_after);

-- Fencing floor: the highest fencing token of all deleted records. A record may be deleted, and claimed again after the
-- clock was set back. It must not get a fencing token that a paused owner of the deleted record still has. Every
-- statement of the store that deletes records raises this number. If you delete rows by hand, raise it by hand as well.
CREATE TABLE IF NOT EXISTS "idem_records_fencing_floor" (
    one bigint NOT NULL PRIMARY KEY CHECK (one = 1),
    fencing_token bigint NOT NULL
);

-- Audit of manual changes: who changed which records, and why. Entries outlive their records, and no process changes or
-- deletes them. The index finds the entries of one record; all others are read by number, the newest first.
CREATE TABLE IF NOT EXISTS "idem_records_audit" (
    entry bigint NOT NULL PRIMARY KEY,  -- one more than the highest before
    made_at bigint NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    action text NOT NULL,               -- completed, failed, unrecorded, released, interrupted, erased, purged
    id bytea,                           -- of the record; null for a purge, like the next six columns
    scope text,
    operation text,
    idempotency_key text,
    state text,                         -- before the change, like the next two columns
    fencing_token bigint,
    attempt bigint,
    removed bigint,                     -- counts of a purge, null for all others
    abandoned bigint,
    interrupted bigint
);

CREATE INDEX IF NOT EXISTS "idem_records_audit_of" ON "idem_records_audit" (id, entry);

INSERT INTO "idem_records_portable" (version, compatible_since, applied_at) VALUES (1, 1, (extract(epoch FROM now()) * 1000000)::bigint) ON CONFLICT (version) DO NOTHING;

CREATE TABLE IF NOT EXISTS "idem_records_portable" (version bigint NOT NULL PRIMARY KEY, applied_at bigint NOT NULL, compatible_since bigint);

-- Time for which the payload of a record is kept, if it is shorter than the retention. Processes of the version before leave
-- the column null.
ALTER TABLE "idem_records" ADD COLUMN IF NOT EXISTS payload_for bigint;

INSERT INTO "idem_records_portable" (version, compatible_since, applied_at) VALUES (2, 2, (extract(epoch FROM now()) * 1000000)::bigint) ON CONFLICT (version) DO NOTHING;

CREATE TABLE IF NOT EXISTS "idem_records_portable" (version bigint NOT NULL PRIMARY KEY, applied_at bigint NOT NULL, compatible_since bigint);

-- Names of the operations that had records. Scope, operation and key give the id of a record, so that an operator finds a
-- key in all operations without an index. Each process writes the name of an operation once.
CREATE TABLE IF NOT EXISTS "idem_records_operations" (
    name text NOT NULL PRIMARY KEY
);

INSERT INTO "idem_records_portable" (version, compatible_since, applied_at) VALUES (3, 3, (extract(epoch FROM now()) * 1000000)::bigint) ON CONFLICT (version) DO NOTHING;

CREATE TABLE IF NOT EXISTS "idem_records_portable" (version bigint NOT NULL PRIMARY KEY, applied_at bigint NOT NULL, compatible_since bigint);

-- Hashes of the content that a manual change replaced and stored, and the user of the database who made it. Entries of the
-- versions before have none. Adding a column without a default rewrites no row.
--
-- Compatible since version 3.
ALTER TABLE "idem_records_audit" ADD COLUMN IF NOT EXISTS old_value bytea;
ALTER TABLE "idem_records_audit" ADD COLUMN IF NOT EXISTS new_value bytea;
ALTER TABLE "idem_records_audit" ADD COLUMN IF NOT EXISTS database_user text;

INSERT INTO "idem_records_portable" (version, compatible_since, applied_at) VALUES (4, 3, (extract(epoch FROM now()) * 1000000)::bigint) ON CONFLICT (version) DO NOTHING;

CREATE TABLE IF NOT EXISTS "idem_outbox_migrations" (version bigint NOT NULL PRIMARY KEY, applied_at bigint NOT NULL, compatible_since bigint);

-- Messages that wait for a relay. Times are in microseconds since 1970-01-01 UTC, by the database's clock. An outbox
-- with another table name replaces every "idem_outbox" below by that name. An outbox with a schema sets the search path
-- to that schema.

CREATE TABLE IF NOT EXISTS "idem_outbox" (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, -- order of enqueuing
    message_key text NOT NULL UNIQUE,   -- key by which a consumer recognises duplicates
    topic text NOT NULL,
    ordering_key text,                  -- null if order does not matter
    payload text NOT NULL,              -- JSON
    headers text,                       -- JSON object of strings
    state text NOT NULL,                -- waiting, delivered, parked
    attempt bigint NOT NULL,            -- number of claims by relays
    claim_id bytea,                     -- claim id of the relay that delivers the message, 16 bytes; null if none does
    due_at bigint,                      -- while waiting: end of the delay, pause or lease
    enqueued_at bigint NOT NULL,
    parked_at bigint,
    purge_after bigint,                 -- of a delivered message: time from which it is deleted
    last_error text
);

-- Due messages with an ordering key have another index than those without one. A poll for messages without a key then
-- never reads messages that wait behind others.
CREATE INDEX IF NOT EXISTS "idem_outbox_due_ordered" ON "idem_outbox" (topic, due_at, id)
    WHERE due_at IS NOT NULL AND ordering_key IS NOT NULL;

CREATE INDEX IF NOT EXISTS "idem_outbox_due_unordered" ON "idem_outbox" (topic, due_at, id)
    WHERE due_at IS NOT NULL AND ordering_key IS NULL;

-- Finds the first waiting and the first parked message of an ordering key, and the next ordering key.
CREATE INDEX IF NOT EXISTS "idem_outbox_order" ON "idem_outbox" (ordering_key, state, id)
    WHERE ordering_key IS NOT NULL AND state <> 'delivered';

CREATE INDEX IF NOT EXISTS "idem_outbox_parked" ON "idem_outbox" (id) WHERE parked_at IS NOT NULL;

CREATE INDEX IF NOT EXISTS "idem_outbox_purge" ON "idem_outbox" (purge_after) WHERE purge_after IS NOT NULL;

INSERT INTO "idem_outbox_migrations" (version, compatible_since, applied_at) VALUES (1, 1, (extract(epoch FROM now()) * 1000000)::bigint) ON CONFLICT (version) DO NOTHING;

CREATE TABLE IF NOT EXISTS "idem_outbox_migrations" (version bigint NOT NULL PRIMARY KEY, applied_at bigint NOT NULL, compatible_since bigint);

-- Audit of manual changes of parked messages: who requeued or discarded which message, and why. No process changes or
-- deletes entries. They are read by number, the newest first.
CREATE TABLE IF NOT EXISTS "idem_outbox_audit" (
    entry bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    made_at bigint NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    action text NOT NULL,               -- requeued, discarded
    message_key text NOT NULL,
    topic text NOT NULL,
    ordering_key text,
    attempt bigint NOT NULL,            -- number of claims by relays, before the change
    enqueued_at bigint NOT NULL
);

INSERT INTO "idem_outbox_migrations" (version, compatible_since, applied_at) VALUES (2, 2, (extract(epoch FROM now()) * 1000000)::bigint) ON CONFLICT (version) DO NOTHING;

-- Rows. The times are relative to the load, see README.md.
INSERT INTO "idem_outbox" ("id", "message_key", "topic", "ordering_key", "payload", "headers", "state", "attempt", "claim_id", "due_at", "enqueued_at", "parked_at", "purge_after", "last_error") OVERRIDING SYSTEM VALUE VALUES
(1, 'm-1', 'order.placed', NULL, '{"order":7,"text":"Käse ''n'' Brot","number":1}', NULL, 'waiting', 0, NULL, <t:0m@81>, <t:0m@81>, NULL, NULL, NULL),
(2, 'm-2', 'order.placed', 'order ''7''', '{"order":7,"text":"Käse ''n'' Brot","number":2}', E'{"trace":"00-ab \\"c\\""}', 'waiting', 0, NULL, <t:0m@82>, <t:0m@82>, NULL, NULL, NULL),
(3, 'm-3', 'order.placed', 'order ''7''', '{"order":7,"text":"Käse ''n'' Brot","number":3}', NULL, 'waiting', 0, NULL, <t:0m@83>, <t:0m@83>, NULL, NULL, NULL),
(4, 'delivered', 'order.handled', NULL, '"delivered"', NULL, 'delivered', 1, NULL, NULL, <t:0m@84>, NULL, <t:525600m@85>, NULL),
(5, 'parked', 'order.handled', NULL, '"parked"', NULL, 'parked', 1, NULL, NULL, <t:0m@86>, <t:0m@87>, NULL, 'no stamps'),
(6, 'requeued', 'order.handled', NULL, '"requeued"', NULL, 'waiting', 0, NULL, <t:0m@92>, <t:0m@88>, NULL, NULL, 'no stamps');
SELECT setval(pg_get_serial_sequence('"idem_outbox"', 'id'), (SELECT max("id") FROM "idem_outbox"));
INSERT INTO "idem_outbox_audit" ("entry", "made_at", "actor", "reason", "action", "message_key", "topic", "ordering_key", "attempt", "enqueued_at") OVERRIDING SYSTEM VALUE VALUES
(1, <t:0m@92>, 'ann@desk', 'asked the bank: ''not charged''', 'requeued', 'requeued', 'order.handled', NULL, 1, <t:0m@88>),
(2, <t:0m@93>, 'ann@desk', 'asked the bank: ''not charged''', 'discarded', 'discarded', 'order.handled', NULL, 1, <t:0m@90>);
SELECT setval(pg_get_serial_sequence('"idem_outbox_audit"', 'entry'), (SELECT max("entry") FROM "idem_outbox_audit"));
INSERT INTO "idem_records" ("id", "scope", "operation", "idempotency_key", "fingerprint", "state", "claim_id", "fencing_token", "attempt", "lease_until", "retention", "on_crash", "codec", "payload", "first_claimed_at", "ended_at", "purge_after", "owner", "attempt_began_at", "history", "members", "payload_for") VALUES
('\x00bf58660378a8028cf92552dda5d6a067d50c2e89a85e2828de7cedaa296435', '', 'charges.create', 'lapsed-after-steps', '\x01000000004b4bacdb55067f68ab8b0edb1be62705bed205fa74c316f76687cd22d642c3e1', 'running', '\x00bf58660378a8028cf92552dda5d6a0', <t:0m@30>, 1, <t:0m@33>, 31536000000000, 'rerun', NULL, NULL, <t:0m@30>, NULL, <t:527040m@30>, 'web-1', NULL, NULL, NULL, NULL),
('\x0325de9f4977709f67d978349c0992e43dc497d8c76b6fa6e424165d7d4f2841', '', 'charges.create', 'failed-json', '\x0100000000a3dea044aa411d7b0f5d42c7efd3618b19f7f30c62bc42e6d01e7435e923b88a', 'failed', '\x0325de9f4977709f67d978349c0992e4', <t:0m@13>, 1, <t:1440m@13>, 31536000000000, 'rerun', 'json/1', '\x7b224465636c696e6564223a7b22636f6465223a35317d7d', <t:0m@13>, <t:0m@14>, <t:527040m@13>, 'web-1', NULL, NULL, NULL, NULL),
('\x08c769c093dda67f0c1117c9d0bda20c7a67b01be725fcf8e118bb762b91f152', '', 'charges.create', 'signed', '\x01b49fe7ea8e2ad5f9d29a491bd3a810586c098fd5846cacf907702f20c7fbc065ba9d3a8b', 'completed', '\x08c769c093dda67f0c1117c9d0bda20c', <t:0m@9>, 1, <t:1440m@9>, 31536000000000, 'rerun', 'json/1', '\x7b226e756d626572223a22722d7369676e6564222c2263656e7473223a31383434363734343037333730393535313631352c2272617465223a302e312c226c696e6573223a5b5b22746561222c2d335d2c5b224bc3a4736520276e27205c2242726f745c22222c305d5d2c226e6f7465223a6e756c6c7d', <t:0m@9>, <t:0m@10>, <t:527040m@9>, 'web-1', NULL, NULL, '\x01038e2ad5f9d523e9d90f9fd09902885c840ad8df5a7d0c1344a7ace343', NULL),
('\x1ff40434b51f7738c7d65f54e3939290b74124bdb7be57aae3ea6455cee47054', '', 'charges.create', 'interrupted', '\x0100000000b8d15863600bd36ffa77c90fadbcbe34e8f956fb6c4c7801296146500b15a415', 'interrupted', '\x1ff40434b51f7738c7d65f54e3939290', <t:0m@21>, 1, <t:1440m@21>, 31536000000000, 'refuse', NULL, NULL, <t:0m@21>, NULL, NULL, 'web-1', NULL, NULL, NULL, NULL),
('\x2a7caf66e09aa7b611dd175d88765562159c6a7c99486ea393dff568ede892b4', '', 'charges.create', 'failed-cbor', '\x010000000033bef51471383646ab2092f0d210e9f89e6b7d28a0116c27948871389f844fd1', 'failed', '\x2a7caf66e09aa7b611dd175d88765562', <t:0m@15>, 1, <t:1440m@15>, 31536000000000, 'rerun', 'cbor/1', '\xa1684465636c696e6564a164636f64651833', <t:0m@15>, <t:0m@16>, <t:527040m@15>, 'web-1', NULL, NULL, NULL, NULL),
('\x2a9fd2d22a344f38c251a23afba279ff1c58755c41c2f319d3c572a14ae2e053', '', 'charges.create', 'interrupted-reconcile', '\x0100000000befa1b94767bcf87df3337c9eeae79eb4e496ac99f9b46af715b01c7df571a17', 'interrupted', '\x2a9fd2d22a344f38c251a23afba279ff', <t:0m@23>, 1, <t:1440m@23>, 31536000000000, 'reconcile', NULL, NULL, <t:0m@23>, NULL, NULL, 'web-1', NULL, NULL, NULL, NULL),
('\x303448cce93ec97eeb6b1a48701ac5390d83843d7d7189953a4e4b172aa3f19e', '', 'charges.create', 'running-refuse', '\x0100000000991e6b32adf51859f240a82dcdcf05cfaf7c6ec2070814417e539d749ff9e254', 'running', '\x303448cce93ec97eeb6b1a48701ac539', <t:0m@26>, 1, <t:1440m@26>, 31536000000000, 'refuse', NULL, NULL, <t:0m@26>, NULL, <t:527040m@26>, 'web-1', NULL, NULL, NULL, NULL),
('\x37a141eeac885d07d61e539619e68383de3fb9e1638d6b2ce11fa6e8e18acbee', '', 'charges.create', 'completed-json', '\x0100000000e790f9345775d46a9de82b52d515f975762ecd6347b3f5cd7442e360ddb64f50', 'completed', '\x37a141eeac885d07d61e539619e68383', <t:0m@1>, 1, <t:1440m@1>, 31536000000000, 'rerun', 'json/1', '\x7b226e756d626572223a22722d636f6d706c657465642d6a736f6e222c2263656e7473223a31383434363734343037333730393535313631352c2272617465223a302e312c226c696e6573223a5b5b22746561222c2d335d2c5b224bc3a4736520276e27205c2242726f745c22222c305d5d2c226e6f7465223a6e756c6c7d', <t:0m@1>, <t:0m@2>, <t:527040m@1>, 'web-1', NULL, NULL, NULL, NULL),
('\x3aa41ec39683e5b4c7eb8a9661593643fd1e2ab17bf8062c34aa3aac87174184', '', 'charges.create', 'lapsed', '\x01000000002a60f5607adc76d03c60ae638b2a2926e2725099e9fe5783bf529c3dd1c64e10', 'running', '\x3aa41ec39683e5b4c7eb8a9661593643', <t:0m@27>, 1, <t:0m@27>, 31536000000000, 'rerun', NULL, NULL, <t:0m@27>, NULL, <t:525600m@27>, 'web-1', NULL, NULL, NULL, NULL),
('\x420fb3a0d1cc985ac4542ac85296f060e95c7d05cc9969f335dcf312c949d936', '', 'charges.create', '223bd69690931980b9244f44e40a9382b07e6b4d66859e82f7ca459d5ec713a0', '\x0100000000223bd69690931980b9244f44e40a9382b07e6b4d66859e82f7ca459d5ec713a0', 'completed', '\x420fb3a0d1cc985ac4542ac85296f060', <t:0m@7>, 1, <t:1440m@7>, 31536000000000, 'rerun', 'json/1', '\x7b226e756d626572223a22722d222c2263656e7473223a31383434363734343037333730393535313631352c2272617465223a302e312c226c696e6573223a5b5b22746561222c2d335d2c5b224bc3a4736520276e27205c2242726f745c22222c305d5d2c226e6f7465223a6e756c6c7d', <t:0m@7>, <t:0m@8>, <t:527040m@7>, 'web-1', NULL, NULL, NULL, NULL),
('\x4852a35f9400ef5ea45c300a169e9214ff324c73c1e5296848411bf589b4fce2', '', 'charges.create', 'remembered', '\x0100000000f60bda7137620f5b780bbee2534f7655c0d1cad23943a9e048c029b89e6fc9fa', 'completed', '\x4852a35f9400ef5ea45c300a169e9214', <t:0m@11>, 1, <t:1440m@11>, 63072000000000, 'rerun', 'json/1', '\x7b226e756d626572223a22722d72656d656d6265726564222c2263656e7473223a31383434363734343037333730393535313631352c2272617465223a302e312c226c696e6573223a5b5b22746561222c2d335d2c5b224bc3a4736520276e27205c2242726f745c22222c305d5d2c226e6f7465223a6e756c6c7d', <t:0m@11>, <t:0m@12>, <t:525600m@12>, 'web-1', NULL, NULL, NULL, 31536000000000),
('\x54f19120aada433253395063e24daf65225ebc027d7584defd3276b470b93586', '', 'charges.create', 'completed-cbor', '\x0100000000b1e8c0a6253d1c44efe9c0cca2aac355bde7f4c03907dc980cb0d346558ad9c4', 'completed', '\x54f19120aada433253395063e24daf65', <t:0m@3>, 1, <t:1440m@3>, 31536000000000, 'rerun', 'cbor/1', '\xa5666e756d62657270722d636f6d706c657465642d63626f726563656e74731bffffffffffffffff6472617465fb3fb999999999999a656c696e65738282637465612282704bc3a4736520276e27202242726f742200646e6f7465f6', <t:0m@3>, <t:0m@4>, <t:527040m@3>, 'web-1', NULL, NULL, NULL, NULL),
('\x6558b1aaa0a44e531ab8cbc610045ddfbe1c517853c7f059f89e92a143388a4e', '', 'charges.create', 'lapsed-refuse', '\x0100000000b626d9ab6304cb420c5019fff6d49bd0cdb43f1152e22ae91fe9dd8ccc248143', 'running', '\x6558b1aaa0a44e531ab8cbc610045ddf', <t:0m@28>, 1, <t:0m@28>, 31536000000000, 'refuse', NULL, NULL, <t:0m@28>, NULL, <t:525600m@28>, 'web-1', NULL, NULL, NULL, NULL),
('\x730040553ae139b84195c0f2f8ef70f0fa955d0b8f6388a9eac809815d7050bc', '', 'charges.create', 'resolved-unrecorded', '\x0100000000d469fd9ddb0355394d33d1ec8ff1683b7916e1ea616d0f54225d9fbbd776385d', 'unrecorded', NULL, <t:0m@56>, 1, <t:1440m@54>, 31536000000000, 'refuse', NULL, NULL, <t:0m@54>, <t:0m@56>, <t:525600m@56>, 'web-1', NULL, '1 <t:0m@54> <t:0m@56> resolved-unrecorded web-1
', NULL, NULL),
('\x73c6db766ad25c687cb2166cd74c7bae9d4af0a8960ed1d53e3300737cbe9aa9', '', 'charges.create', 'many-attempts', '\x01000000007d82288310a1db9252de564d9ad6d578e3c98cbc7ecea46dbe3c60a2d49b300e', 'completed', '\x73c6db766ad25c687cb2166cd74c7bae', <t:0m@43>, 3, <t:1440m@43>, 31536000000000, 'rerun', 'json/1', '\x7b226e756d626572223a22722d6d616e792d617474656d707473222c2263656e7473223a31383434363734343037333730393535313631352c2272617465223a302e312c226c696e6573223a5b5b22746561222c2d335d2c5b224bc3a4736520276e27205c2242726f745c22222c305d5d2c226e6f7465223a6e756c6c7d', <t:0m@40>, <t:0m@44>, <t:527040m@43>, 'web-1', <t:0m@43>, '1 <t:0m@40> <t:0m@41> released web-1
2 <t:0m@42> <t:0m@43> lapsed web-2
3 <t:0m@45> <t:0m@45> replayed web-3
', NULL, NULL),
('\x756c4223e53a2d70eccb74012e5d7b9fe16a9cd4dc35ad49f5ecce705aa882f5', '', 'charges.create', 'released', '\x01000000009a382b8f4401139d4e1133d79cc17c4cde11e5a20f0cee195f938f4b1635143d', 'released', NULL, <t:0m@19>, 1, <t:1440m@19>, 31536000000000, 'rerun', NULL, NULL, <t:0m@19>, <t:0m@20>, <t:527040m@19>, 'web-1', NULL, '1 <t:0m@19> <t:0m@20> released web-1
', NULL, NULL),
('\x8bd2598cbd28171e8b9a8a0d5ebf010af50084d8f71c3bed4353133723a57eb3', '', 'charges.create', 'resolved-completed', '\x01000000006836f4534fa884e0c56741236fe50c7617e9b9437579bd423d77f32161ec034c', 'completed', NULL, <t:0m@48>, 1, <t:1440m@46>, 31536000000000, 'refuse', 'json/1', '\x7b226e756d626572223a22722d7265736f6c7665642d636f6d706c65746564222c2263656e7473223a31383434363734343037333730393535313631352c2272617465223a302e312c226c696e6573223a5b5b22746561222c2d335d2c5b224bc3a4736520276e27205c2242726f745c22222c305d5d2c226e6f7465223a6e756c6c7d', <t:0m@46>, <t:0m@48>, <t:525600m@48>, 'web-1', NULL, '1 <t:0m@46> <t:0m@48> resolved-completed web-1
', NULL, NULL),
('\x8fa025f032554354dba8e1a8bbcb2ba94e3e30783b43f517664accbb761145ad', '', 'letters.post', 'lapsed-with-input', '\x0100000000567064083b0cc28281a3e3daa3becc0dcd9b6359375aac8c337c2ae2412fdddd', 'running', '\x8fa025f032554354dba8e1a8bbcb2ba9', <t:0m@34>, 1, <t:0m@36>, 31536000000000, 'rerun', NULL, NULL, <t:0m@34>, NULL, <t:527040m@34>, 'web-1', NULL, NULL, NULL, NULL),
('\x94455297811a51bd0e78283b4928ca428469fb068dbd2da8e56bb0ee7d4dfaa6', 'tenant-1/ünïcode ''"', 'charges.create', 'it''s "1"', '\x0100000000507ced833283a0367a11a969d4ed4817bc5ffe6a89807d56e3ea51cc4f3dd0c1', 'completed', '\x94455297811a51bd0e78283b4928ca42', <t:0m@5>, 1, <t:1440m@5>, 31536000000000, 'rerun', 'json/1', '\x7b226e756d626572223a22722d69742773205c22315c22222c2263656e7473223a31383434363734343037333730393535313631352c2272617465223a302e312c226c696e6573223a5b5b22746561222c2d335d2c5b224bc3a4736520276e27205c2242726f745c22222c305d5d2c226e6f7465223a6e756c6c7d', <t:0m@5>, <t:0m@6>, <t:527040m@5>, 'web-1', NULL, NULL, NULL, NULL),
('\x9b8ea665788542169b88b93fe97f72629ff65db8eb0575e020320daa3f60ad43', '', 'charges.create', 'resolved-interrupted', '\x01000000007120bfb1b3c7c6f5a8181f9cc979bdc3419aedbaaefe4f4be8b39b471bea75f1', 'interrupted', '\x9b8ea665788542169b88b93fe97f7262', <t:0m@62>, 1, <t:0m@62>, 31536000000000, 'refuse', NULL, NULL, <t:0m@62>, NULL, NULL, 'web-1', NULL, NULL, NULL, NULL),
('\x9fe5a8386b4e469a053f577074e932533af923d7e7d633ae2a421bcba4146963', '', 'charges.create', 'resolved-released', '\x010000000013c6917eb9780211941259505151b62233ce50551cdc3a43ae7601a1ac7068ed', 'released', NULL, <t:0m@60>, 1, <t:1440m@58>, 31536000000000, 'refuse', NULL, NULL, <t:0m@58>, <t:0m@60>, <t:525600m@60>, 'web-1', NULL, '1 <t:0m@58> <t:0m@60> resolved-released web-1
', NULL, NULL),
('\xadf999e641305acebcbcf5cc86219291e4c8bf8794a6cd73eaaf533045d591be', '', 'charges.create', 'lapsed-reconcile', '\x0100000000308a8937e9db3e67b4cc25f215bdfde3c5b5a0f62e68b349f543cbb30319baf0', 'running', '\xadf999e641305acebcbcf5cc86219291', <t:0m@29>, 1, <t:0m@29>, 31536000000000, 'reconcile', NULL, NULL, <t:0m@29>, NULL, <t:525600m@29>, 'web-1', NULL, NULL, NULL, NULL),
('\xb72610dd6272515d21f4de51f9e084e41ea2f5a91593d7ce513fdedb23f6d633', '', 'charges.create', 'forgotten', '\x0100000000a3eae061cc339b66acc845709193fc2f743ad9fbac40fa86b343488cd3894195', 'completed', '\xb72610dd6272515d21f4de51f9e084e4', <t:0m@37>, 1, <t:1440m@37>, 31536000000000, 'rerun', NULL, NULL, <t:0m@37>, <t:0m@38>, <t:525600m@38>, 'web-1', NULL, NULL, NULL, 1000),
('\xdde8dc6be9c9be474b4079bf78089bf6b3516ce96f9a8b8b7221122abc8b791f', '', 'charges.create', 'running', '\x0100000000ca4c125b802dbc18aef6ccd9a7d3bf5d8248f4858339544aca29c1c04e45f12b', 'running', '\xdde8dc6be9c9be474b4079bf78089bf6', <t:0m@25>, 1, <t:1440m@25>, 31536000000000, 'rerun', NULL, NULL, <t:0m@25>, NULL, <t:527040m@25>, 'web-1', NULL, NULL, NULL, NULL),
('\xeeba96de1e2dd7807d8ab3f8c0b14d148778f754f0c41f4cd09b8e45ceba639d', '', 'charges.create', 'unrecorded', '\x01000000004232836cad9a8d8e32ae2429b29f04fecc783cfea43ce8301a475d570b11cd07', 'unrecorded', '\xeeba96de1e2dd7807d8ab3f8c0b14d14', <t:0m@17>, 1, <t:1440m@17>, 31536000000000, 'rerun', NULL, NULL, <t:0m@17>, <t:0m@18>, <t:527040m@17>, 'web-1', NULL, NULL, NULL, NULL),
('\xf1b4ab9a2fbc8d9c4327e8640b16d6dbdc08aac4426d57de48b3229d0d42d26f', '', 'charges.create', 'resolved-failed', '\x01000000004d21c34a35220dfedec84cc70135b8a299f4222385402f1a13e71df3e1bb7c2a', 'failed', NULL, <t:0m@52>, 1, <t:1440m@50>, 31536000000000, 'refuse', 'json/1', '\x7b224465636c696e6564223a7b22636f6465223a35317d7d', <t:0m@50>, <t:0m@52>, <t:525600m@52>, 'web-1', NULL, '1 <t:0m@50> <t:0m@52> resolved-failed web-1
', NULL, NULL),
('\xf6f7a68f6b09c1e63adc1ffd8b4ddd42b89813bc05ef78111925cb3e28c1eaee', '', 'charges.create', 'resolved-corrected', '\x0100000000b1be388e2dbcbcd2bdba5352d14bfc466c0fe6873ec3b0eec6a5b511768b3afa', 'completed', NULL, <t:0m@72>, 1, <t:1440m@69>, 31536000000000, 'refuse', 'json/1', '\x7b226e756d626572223a22722d7265736f6c7665642d636f72726563746564222c2263656e7473223a31383434363734343037333730393535313631352c2272617465223a302e312c226c696e6573223a5b5b22746561222c2d335d2c5b224bc3a4736520276e27205c2242726f745c22222c305d5d2c226e6f7465223a6e756c6c7d', <t:0m@69>, <t:0m@71>, <t:525600m@71>, 'web-1', NULL, '1 <t:0m@69> <t:0m@71> resolved-completed web-1
', NULL, NULL);
INSERT INTO "idem_records_audit" ("entry", "made_at", "actor", "reason", "action", "id", "scope", "operation", "idempotency_key", "state", "fencing_token", "attempt", "removed", "abandoned", "interrupted", "old_value", "new_value", "database_user") VALUES
(1, <t:0m@48>, 'ann@desk', 'asked the bank: ''not charged''', 'completed', '\x8bd2598cbd28171e8b9a8a0d5ebf010af50084d8f71c3bed4353133723a57eb3', '', 'charges.create', 'resolved-completed', 'interrupted', <t:0m@46>, 1, NULL, NULL, NULL, NULL, '\x0490b4fd49fb29f232ee942ab60a8f9e7cde899e5b100e9853ce0089abaf3316', 'service'),
(2, <t:0m@52>, 'ann@desk', 'asked the bank: ''not charged''', 'failed', '\xf1b4ab9a2fbc8d9c4327e8640b16d6dbdc08aac4426d57de48b3229d0d42d26f', '', 'charges.create', 'resolved-failed', 'interrupted', <t:0m@50>, 1, NULL, NULL, NULL, NULL, '\x859c1ebcfd7883e40318330f9d781f48097dd98d1e7963fa15123b969eeac807', 'service'),
(3, <t:0m@56>, 'ann@desk', 'asked the bank: ''not charged''', 'unrecorded', '\x730040553ae139b84195c0f2f8ef70f0fa955d0b8f6388a9eac809815d7050bc', '', 'charges.create', 'resolved-unrecorded', 'interrupted', <t:0m@54>, 1, NULL, NULL, NULL, NULL, NULL, 'service'),
(4, <t:0m@60>, 'ann@desk', 'asked the bank: ''not charged''', 'released', '\x9fe5a8386b4e469a053f577074e932533af923d7e7d633ae2a421bcba4146963', '', 'charges.create', 'resolved-released', 'interrupted', <t:0m@58>, 1, NULL, NULL, NULL, NULL, NULL, 'service'),
(5, <t:0m@63>, 'ann@desk', 'asked the bank: ''not charged''', 'interrupted', '\x9b8ea665788542169b88b93fe97f72629ff65db8eb0575e020320daa3f60ad43', '', 'charges.create', 'resolved-interrupted', 'running', <t:0m@62>, 1, NULL, NULL, NULL, NULL, NULL, 'service'),
(6, <t:0m@67>, 'ann@desk', 'asked the bank: ''not charged''', 'erased', '\x0c2c901da866a54223ad52510247b2554c2b04d24cd38488d95232971e5b5efd', '', 'charges.create', 'resolved-erased', 'interrupted', <t:0m@65>, 1, NULL, NULL, NULL, NULL, NULL, 'service'),
(7, <t:0m@71>, 'ann@desk', 'asked the bank: ''not charged''', 'completed', '\xf6f7a68f6b09c1e63adc1ffd8b4ddd42b89813bc05ef78111925cb3e28c1eaee', '', 'charges.create', 'resolved-corrected', 'interrupted', <t:0m@69>, 1, NULL, NULL, NULL, NULL, '\xba0fa59f1f09c8cccf868cf1aeb4832fd36a38dfb3718546172ccae4b2a225b0', 'service'),
(8, <t:0m@72>, 'ann@desk', 'asked the bank: ''not charged''', 'corrected', '\xf6f7a68f6b09c1e63adc1ffd8b4ddd42b89813bc05ef78111925cb3e28c1eaee', '', 'charges.create', 'resolved-corrected', 'completed', <t:0m@71>, 1, NULL, NULL, NULL, '\xba0fa59f1f09c8cccf868cf1aeb4832fd36a38dfb3718546172ccae4b2a225b0', '\x442fefd11bdbe70f037290c0c0f7f0d58d2713ecb28d7ad08ae79f3493df6558', 'service'),
(9, <t:0m@76>, 'ann@desk', 'asked the bank: ''not charged''', 'erased_scope', '\xe5156dde847f2245495950a2f2411ad99e8175ff86455944310ba263d6810af3', NULL, NULL, NULL, NULL, 4711, NULL, 1, NULL, NULL, NULL, NULL, 'service'),
(10, <t:0m@79>, 'ann@desk', 'asked the bank: ''not charged''', 'purged', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1, 1, 0, NULL, NULL, 'service');
DELETE FROM "idem_records_fencing_floor";
INSERT INTO "idem_records_fencing_floor" ("one", "fencing_token") VALUES
(1, <t:0m@77>);
INSERT INTO "idem_records_operations" ("name") VALUES
('charges.create'),
('letters.post');
INSERT INTO "idem_records_recovery" ("id", "first_claimed_at", "operation", "codec", "payload", "recover_after", "recoveries") VALUES
('\x8fa025f032554354dba8e1a8bbcb2ba94e3e30783b43f517664accbb761145ad', <t:0m@34>, 'letters.post', 'json/1', '\x7b226c6574746572223a377d', <t:0m@35>, 0);
INSERT INTO "idem_records_steps" ("id", "name", "first_claimed_at", "codec", "payload") VALUES
('\x00bf58660378a8028cf92552dda5d6a067d50c2e89a85e2828de7cedaa296435', 'charge', <t:0m@30>, 'json/1', '\x353030'),
('\x00bf58660378a8028cf92552dda5d6a067d50c2e89a85e2828de7cedaa296435', 'reserve', <t:0m@30>, 'json/1', '\x2273656174203722');
