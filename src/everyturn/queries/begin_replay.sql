-- Note what a replay is going to do, before it does it.
INSERT INTO eval_replay (id, dataset_id, model, prompt_rev, prompt, settings, scorers, case_ids, trials, seed)
VALUES (:'id'::uuid, :'dataset_id'::uuid, :'model'::text, :'prompt_rev'::text, :'prompt'::text, :'settings'::jsonb,
        :'scorers'::text[], :'case_ids'::uuid[], :'trials'::int, :'seed'::bigint);
