-- What replays add to the results: the judge's cost, drift of recorded tool results, and one word for how a run ended.

ALTER TABLE eval_run
    ADD COLUMN judge_cost_usd numeric(10, 6),
    ADD COLUMN drift          jsonb,
    ADD COLUMN outcome        text NOT NULL GENERATED ALWAYS AS (
        CASE WHEN error IS NOT NULL THEN 'error' WHEN pass THEN 'pass' WHEN NOT pass THEN 'fail' ELSE 'unjudged' END
    ) STORED;

COMMENT ON COLUMN eval_run.outcome IS 'pass, fail, error (never a pass), or unjudged.';
COMMENT ON COLUMN eval_run.judge_cost_usd IS 'What the judges of this run cost; NULL where there were none, or no price is known.';
COMMENT ON COLUMN eval_run.drift IS 'How the calls of an agent differed from the recorded ones: {changed: […], unused: […]}.';

-- The key of a replay's runs, with what reports add up: they are answered from the index alone.
ALTER TABLE eval_run DROP CONSTRAINT eval_run_replay_id_case_id_trial_key;
ALTER TABLE eval_run ADD UNIQUE (replay_id, case_id, trial)
    INCLUDE (outcome, latency_ms, input_tokens, output_tokens, judge_score, cost_usd, judge_cost_usd);

-- Rows that other programs wrote belong to no replay: the newest of a case and trial counts.
CREATE INDEX eval_run_by_hand_idx ON eval_run (dataset_id, model, prompt_rev, case_id, trial, ran_at DESC, id)
    INCLUDE (outcome, latency_ms, input_tokens, output_tokens, judge_score, cost_usd, judge_cost_usd)
    WHERE replay_id IS NULL;

CREATE INDEX eval_run_unjudged_idx ON eval_run (replay_id) WHERE outcome = 'unjudged';

-- What a dataset holds, in order: the same wherever it is restored.
CREATE FUNCTION everyturn_dataset_hash(case_ids uuid[]) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT encode(sha256(convert_to(
               coalesce(string_agg(c.id::text || ' ' || c.content_hash, E'\n' ORDER BY d.place), ''), 'UTF8')), 'hex')
      FROM unnest(case_ids) WITH ORDINALITY AS d (id, place)
      JOIN eval_case c ON c.id = d.id
$$;

-- The runs that count for one model under one prompt: those of a replay, or, where it is NULL, those written by hand.
CREATE FUNCTION everyturn_runs_of(dataset uuid, of_model text, of_prompt_rev text, replay uuid)
RETURNS TABLE (
    case_id uuid, trial int, outcome text, latency_ms int, input_tokens int, output_tokens int,
    judge_score numeric, cost_usd numeric, judge_cost_usd numeric
)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT r.case_id, r.trial, r.outcome, r.latency_ms, r.input_tokens, r.output_tokens,
           r.judge_score, r.cost_usd, r.judge_cost_usd
      FROM eval_run r
     WHERE r.replay_id = replay
    UNION ALL
    SELECT h.case_id, h.trial, h.outcome, h.latency_ms, h.input_tokens, h.output_tokens,
           h.judge_score, h.cost_usd, h.judge_cost_usd
      FROM (SELECT DISTINCT ON (r.case_id, r.trial) r.*
              FROM eval_run r
             WHERE replay IS NULL
               AND r.replay_id IS NULL
               AND r.dataset_id = dataset AND r.model = of_model AND r.prompt_rev = of_prompt_rev
             ORDER BY r.case_id, r.trial, r.ran_at DESC, r.id) AS h
$$;

-- The newest replay of each model and prompt over a dataset; replay is NULL where all runs were written by hand.
CREATE FUNCTION everyturn_newest_replays(dataset uuid)
RETURNS TABLE (
    model text, prompt_rev text, replay uuid, status text, trials int, cases int, started_at timestamptz
)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    WITH newest AS (
        SELECT DISTINCT ON (p.model, p.prompt_rev)
               p.model, p.prompt_rev, p.id, p.status, p.trials, cardinality(p.case_ids) AS cases, p.started_at
          FROM eval_replay p
         WHERE p.dataset_id = dataset
         ORDER BY p.model, p.prompt_rev, p.started_at DESC, p.id DESC
    ), by_hand AS (
        SELECT DISTINCT r.model, r.prompt_rev
          FROM eval_run r
         WHERE r.replay_id IS NULL AND r.dataset_id = dataset
    )
    SELECT n.model, n.prompt_rev, n.id, n.status, n.trials, n.cases, n.started_at FROM newest n
    UNION ALL
    SELECT b.model, b.prompt_rev, NULL, 'finished', NULL, NULL, NULL
      FROM by_hand b
     WHERE NOT EXISTS (SELECT FROM newest n WHERE n.model = b.model AND n.prompt_rev = b.prompt_rev)
$$;
