-- Store what replays found, given as one JSON array. A case and trial has one run: a verdict is added to an output that
-- waits for it, and a run that ended in an error may be made again; what was judged stays.
INSERT INTO eval_run AS r (id, dataset_id, case_id, model, prompt_rev, output, pass, judge_score, judge_reason,
                           latency_ms, input_tokens, output_tokens, cost_usd, ran_at, replay_id, trial, error, scores,
                           run_id, judge_cost_usd, drift)
SELECT (n ->> 'id')::uuid, (n ->> 'dataset_id')::uuid, (n ->> 'case_id')::uuid, n ->> 'model', n ->> 'prompt_rev',
       n ->> 'output', (n ->> 'pass')::boolean, (n ->> 'judge_score')::numeric(3, 2), n ->> 'judge_reason',
       (n ->> 'latency_ms')::int, (n ->> 'input_tokens')::int, (n ->> 'output_tokens')::int,
       (n ->> 'cost_usd')::numeric(10, 6), (n ->> 'ran_at')::timestamptz, (n ->> 'replay_id')::uuid,
       (n ->> 'trial')::int, n ->> 'error', nullif(n -> 'scores', 'null'), n ->> 'run_id',
       (n ->> 'judge_cost_usd')::numeric(10, 6), nullif(n -> 'drift', 'null')
  FROM jsonb_array_elements(:'records'::jsonb) AS a (n)
    ON CONFLICT (replay_id, case_id, trial) DO UPDATE
   SET output = excluded.output, pass = excluded.pass, judge_score = excluded.judge_score,
       judge_reason = excluded.judge_reason, latency_ms = excluded.latency_ms, input_tokens = excluded.input_tokens,
       output_tokens = excluded.output_tokens, cost_usd = excluded.cost_usd, ran_at = excluded.ran_at,
       error = excluded.error, scores = excluded.scores, run_id = excluded.run_id,
       judge_cost_usd = excluded.judge_cost_usd, drift = excluded.drift
 WHERE r.outcome IN ('unjudged', 'error');
