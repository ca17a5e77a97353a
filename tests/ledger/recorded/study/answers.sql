-- The stored answers of the study; recorded once, never regenerated.
BEGIN TRANSACTION;
CREATE TABLE answers (
    dataset TEXT NOT NULL, name TEXT NOT NULL, answer TEXT NOT NULL,
    PRIMARY KEY (dataset, name)
);
INSERT INTO "answers" VALUES('people','60353af3deddb820d6e07e5f9beda6c58e4cb65b388bd2b771b2c679984f3407','{"about": "of the rows kept: at most 2 of each person''s rows, chosen at random", "answered_before": false, "at": "2026-11-18T04:04:42+00:00", "dataset": "people", "errors": [{"confidence": 0.95, "high": 36, "label": "count", "low": -84}], "loss": {"loss": {"kind": "DiscreteLaplace", "relation": "add_remove", "scale": 20.0, "sensitivity": 2}, "schema": "discreet.loss", "version": 1}, "query": {"epsilon": "1/10", "kind": "count"}, "receipt": {"entry": {"at": "2026-03-04T05:06:01.000000+00:00", "content": {"analyst": "ann", "delta": null, "key": "curator:60353af3deddb820d6e07e5f9beda6c58e4cb65b388bd2b771b2c679984f3407:d2d21d0a27889053b594f5113722d872", "loss": {"loss": {"kind": "DiscreteLaplace", "relation": "add_remove", "scale": 20.0, "sensitivity": 2}, "schema": "discreet.loss", "version": 1}, "project": null, "purpose": "count", "read_as": null, "spent": {"dataset": {"basic": "1/10", "delta": "0", "zcdp": "351547803487777/72057594037927936"}}}, "dataset": "people", "genesis": "c7aa341707758d3c09657cd03d7b74b056c354a8941a9337ee23e9cca6aa227f", "kind": "charge", "ledger": "6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e", "previous": "c7aa341707758d3c09657cd03d7b74b056c354a8941a9337ee23e9cca6aa227f", "roll": "1:9565871788f7197aee9ec682439b8f97544f03f96b39509a83fa370d70873ce5", "schema": "discreet.ledger.entry", "seq": 1, "version": 2}, "hash": "0484b88e45558d96d4ad43a1f5e706b0639217ab03e150bf88bbd70d07788bf7", "schema": "discreet.ledger.receipt", "version": 1}, "value": -24}');
CREATE TABLE keys (
    dataset TEXT NOT NULL, key TEXT NOT NULL, name TEXT NOT NULL,
    PRIMARY KEY (dataset, key)
);
INSERT INTO "keys" VALUES('people','k1','60353af3deddb820d6e07e5f9beda6c58e4cb65b388bd2b771b2c679984f3407');
CREATE TABLE receivers (
    dataset TEXT NOT NULL, name TEXT NOT NULL, analyst TEXT NOT NULL,
    PRIMARY KEY (dataset, name, analyst)
);
INSERT INTO "receivers" VALUES('people','60353af3deddb820d6e07e5f9beda6c58e4cb65b388bd2b771b2c679984f3407','ann');
CREATE TABLE stores (only INTEGER PRIMARY KEY CHECK (only = 1), name TEXT NOT NULL);
INSERT INTO "stores" VALUES(1,'6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e');
COMMIT;
