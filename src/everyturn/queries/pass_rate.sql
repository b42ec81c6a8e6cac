-- What share of a dataset's cases does each model pass under each prompt, and at what cost and speed?
-- Counted are the runs of the newest replay of each model and prompt; errors and outputs that wait for a verdict are in
-- n, and are no passes. Latencies are added up per millisecond first, so that a million runs need no sorting.
--
-- name, version       the dataset; without a version, its newest
-- replay              only this replay; may be NULL
-- model, prompt_rev   only this model, and this prompt (or its beginning); may be NULL

WITH dataset AS MATERIALIZED (
    SELECT d.id, cardinality(d.case_ids) AS cases
      FROM eval_dataset d
     WHERE d.name = :'name'::text
       AND (:'version'::int IS NULL OR d.version = :'version'::int)
     ORDER BY d.version DESC
     LIMIT 1
), chosen AS MATERIALIZED (
    SELECT row_number() OVER () AS side, n.*
      FROM (SELECT n.model, n.prompt_rev, n.replay, n.status, n.trials, n.cases, n.started_at
              FROM dataset d
             CROSS JOIN LATERAL everyturn_newest_replays(d.id) AS n
             WHERE :'replay'::uuid IS NULL
            UNION ALL
            SELECT p.model, p.prompt_rev, p.id, p.status, p.trials, cardinality(p.case_ids), p.started_at
              FROM eval_replay p
              JOIN dataset d ON d.id = p.dataset_id
             WHERE p.id = :'replay'::uuid) AS n
     WHERE (:'model'::text IS NULL OR n.model = :'model'::text)
       AND (:'prompt_rev'::text IS NULL OR starts_with(n.prompt_rev, :'prompt_rev'::text))
), counted AS (
    -- The runs of one replay are read by its id, which is a constant here, so that parallel workers may share them.
    SELECT 1 AS side, r.outcome, r.latency_ms, count(*) AS n, count(*) FILTER (WHERE r.trial = 1) AS cases,
           sum(r.judge_score) AS score, count(r.judge_score) AS scored,
           sum(r.cost_usd) AS cost_usd, sum(r.judge_cost_usd) AS judge_cost_usd, count(r.cost_usd) AS priced,
           sum(r.input_tokens) AS input_tokens, sum(r.output_tokens) AS output_tokens
      FROM eval_run r
     WHERE r.replay_id = :'replay'::uuid
     GROUP BY r.outcome, r.latency_ms
    UNION ALL
    SELECT c.side, r.outcome, r.latency_ms, count(*), count(*) FILTER (WHERE r.trial = 1),
           sum(r.judge_score), count(r.judge_score),
           sum(r.cost_usd), sum(r.judge_cost_usd), count(r.cost_usd),
           sum(r.input_tokens), sum(r.output_tokens)
      FROM chosen c
     CROSS JOIN dataset d
     CROSS JOIN LATERAL everyturn_runs_of(d.id, c.model, c.prompt_rev, c.replay) AS r
     WHERE :'replay'::uuid IS NULL
     GROUP BY c.side, r.outcome, r.latency_ms
), ranked AS (
    SELECT g.*,
           sum(g.n) OVER (PARTITION BY g.side ORDER BY g.latency_ms) AS up_to,
           sum(g.n) OVER (PARTITION BY g.side) AS all_of_them
      FROM counted g
), added AS (
    SELECT r.side, sum(r.n)::bigint AS n, sum(r.cases)::bigint AS cases,
           coalesce(sum(r.n) FILTER (WHERE r.outcome = 'pass'), 0)::bigint AS passed,
           coalesce(sum(r.n) FILTER (WHERE r.outcome = 'fail'), 0)::bigint AS failed,
           coalesce(sum(r.n) FILTER (WHERE r.outcome = 'error'), 0)::bigint AS errors,
           coalesce(sum(r.n) FILTER (WHERE r.outcome = 'unjudged'), 0)::bigint AS unjudged,
           sum(r.score) / nullif(sum(r.scored), 0) AS mean_score,
           sum(r.cost_usd) AS cost_usd, sum(r.judge_cost_usd) AS judge_cost_usd,
           (sum(r.n) - sum(r.priced))::bigint AS unpriced,
           sum(r.input_tokens)::bigint AS input_tokens, sum(r.output_tokens)::bigint AS output_tokens,
           min(r.latency_ms) FILTER (WHERE r.up_to >= 0.50 * r.all_of_them) AS p50_ms,
           min(r.latency_ms) FILTER (WHERE r.up_to >= 0.95 * r.all_of_them) AS p95_ms
      FROM ranked r
     GROUP BY r.side
)
SELECT c.model, c.prompt_rev, a.n, round(a.passed / a.n::numeric, 4) AS pass_rate, a.passed, a.failed, a.errors,
       a.unjudged, round(a.mean_score, 4) AS mean_score, a.cost_usd, a.judge_cost_usd, a.unpriced, a.input_tokens,
       a.output_tokens, a.p50_ms, a.p95_ms, a.cases, d.cases AS dataset_cases,
       coalesce(c.cases * c.trials, d.cases) AS planned, coalesce(c.trials, 1) AS trials, c.replay AS replay_id,
       c.status, c.started_at
  FROM chosen c
 CROSS JOIN dataset d
  JOIN added a ON a.side = c.side
 ORDER BY pass_rate DESC, c.model, c.prompt_rev;
