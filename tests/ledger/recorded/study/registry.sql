-- The registry of the study; its token is dsc_6e6e6e6e6e6e6e6e_6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e; recorded once, never regenerated.
BEGIN TRANSACTION;
CREATE TABLE analysts (name TEXT PRIMARY KEY, created TEXT NOT NULL);
INSERT INTO "analysts" VALUES('ann','2026-03-04T05:06:00.000000+00:00');
CREATE TABLE datasets (name TEXT PRIMARY KEY, schema TEXT NOT NULL, source TEXT NOT NULL, part TEXT NOT NULL, engine TEXT NOT NULL, created TEXT NOT NULL, UNIQUE (source, part));
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO "facts" VALUES('version','1');
CREATE TABLE tokens (id TEXT PRIMARY KEY, digest TEXT NOT NULL, role TEXT NOT NULL, analyst TEXT, project TEXT, datasets TEXT NOT NULL, note TEXT NOT NULL, created TEXT NOT NULL, expires TEXT NOT NULL, revoked TEXT);
INSERT INTO "tokens" VALUES('6e6e6e6e6e6e6e6e','8f57c2eee133d732ef3446b8ec99c9f1086acbb0ccdbd759b81c26cd564981ff','analyst','ann',NULL,'["people"]','','2026-03-04T05:06:00.000000+00:00','2036-03-11T05:06:00.000000+00:00',NULL);
COMMIT;
