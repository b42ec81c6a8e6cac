-- Publish a dataset of a bundle as it was: its id, version and time are those it was exported with.
INSERT INTO eval_dataset (id, name, version, case_ids, notes, published_at)
VALUES (:'id'::uuid, :'name'::text, :'version'::int, :'case_ids'::uuid[], :'notes'::text,
        :'published_at'::timestamptz);
