-- Which cases does the candidate fail that the baseline passed? Or, by category, which others changed?
-- Each side is the newest replay of its model and prompt (or the replay given); by the majority of its trials.
--
-- name, version                            the dataset; without a version, its newest
-- baseline, baseline_rev                   the old model and prompt; a prompt that is NULL is any, the newest first
-- candidate, candidate_rev                 the new ones
-- baseline_replay, candidate_replay        these replays instead; may be NULL
-- category   regressed (when NULL), improved, new_failure, removed, flaky, unjudged, new, unchanged or any
-- limit      how many; NULL for all

WITH dataset AS MATERIALIZED (
    SELECT d.id
      FROM eval_dataset d
     WHERE d.name = :'name'::text
       AND (:'version'::int IS NULL OR d.version = :'version'::int)
     ORDER BY d.version DESC
     LIMIT 1
), newest AS MATERIALIZED (
    SELECT n.model, n.prompt_rev, n.replay, n.started_at
      FROM dataset d
     CROSS JOIN LATERAL everyturn_newest_replays(d.id) AS n
), old_side AS MATERIALIZED (
    SELECT n.model, n.prompt_rev, coalesce(:'baseline_replay'::uuid, n.replay) AS replay
      FROM newest n
     WHERE n.model = :'baseline'::text
       AND (:'baseline_rev'::text IS NULL OR n.prompt_rev = :'baseline_rev'::text)
     ORDER BY n.started_at DESC NULLS LAST, n.prompt_rev
     LIMIT 1
), new_side AS MATERIALIZED (
    SELECT n.model, n.prompt_rev, coalesce(:'candidate_replay'::uuid, n.replay) AS replay
      FROM newest n
     WHERE n.model = :'candidate'::text
       AND (:'candidate_rev'::text IS NULL OR n.prompt_rev = :'candidate_rev'::text)
     ORDER BY n.started_at DESC NULLS LAST, n.prompt_rev
     LIMIT 1
), old AS (
    SELECT r.case_id, count(*) AS n, count(*) FILTER (WHERE r.outcome = 'pass') AS passed,
           count(*) FILTER (WHERE r.outcome = 'unjudged') AS unjudged
      FROM dataset d
     CROSS JOIN old_side s
     CROSS JOIN LATERAL everyturn_runs_of(d.id, s.model, s.prompt_rev, s.replay) AS r
     GROUP BY r.case_id
), new AS (
    SELECT r.case_id, count(*) AS n, count(*) FILTER (WHERE r.outcome = 'pass') AS passed,
           count(*) FILTER (WHERE r.outcome = 'unjudged') AS unjudged
      FROM dataset d
     CROSS JOIN new_side s
     CROSS JOIN LATERAL everyturn_runs_of(d.id, s.model, s.prompt_rev, s.replay) AS r
     GROUP BY r.case_id
), paired AS (
    SELECT coalesce(new.case_id, old.case_id) AS case_id, old.n AS old_n, old.passed AS old_passed,
           new.n AS new_n, new.passed AS new_passed,
           CASE
               WHEN coalesce(old.unjudged, 0) + coalesce(new.unjudged, 0) > 0 THEN 'unjudged'
               WHEN new.n IS NULL THEN 'removed'
               WHEN old.n IS NULL THEN CASE WHEN 2 * new.passed > new.n THEN 'new' ELSE 'new_failure' END
               WHEN 2 * old.passed > old.n AND NOT 2 * new.passed > new.n THEN 'regressed'
               WHEN NOT 2 * old.passed > old.n AND 2 * new.passed > new.n THEN 'improved'
               WHEN old.passed NOT IN (0, old.n) OR new.passed NOT IN (0, new.n) THEN 'flaky'
               ELSE 'unchanged'
           END AS category
      FROM old
      FULL JOIN new ON new.case_id = old.case_id
), listed AS MATERIALIZED (
    SELECT p.*, c.prompt, c.tags, c.reference
      FROM paired p
      JOIN eval_case c ON c.id = p.case_id
     WHERE p.category = coalesce(:'category'::text, 'regressed')
        OR (:'category'::text = 'any' AND p.category <> 'unchanged')
     ORDER BY array_position(ARRAY['regressed', 'new_failure', 'flaky', 'unjudged', 'improved', 'removed'], p.category),
              ('regression' = ANY (c.tags)) DESC, p.case_id
     LIMIT :'limit'::bigint
)
SELECT l.case_id AS id, l.category, l.prompt, l.tags, l.reference, before.output AS old_output, after.output,
       l.old_passed, l.old_n, l.new_passed, l.new_n, after.error, after.judge_reason
  FROM listed l
 CROSS JOIN dataset d
  LEFT JOIN old_side os ON true
  LEFT JOIN new_side ns ON true
  -- Of several trials the one that shows what changed: a failed one of the candidate, a passed one of the baseline.
  LEFT JOIN LATERAL (
       SELECT r.output
         FROM eval_run r
        WHERE r.case_id = l.case_id AND r.dataset_id = d.id
          AND r.replay_id IS NOT DISTINCT FROM os.replay
          AND r.model = os.model AND r.prompt_rev = os.prompt_rev
        ORDER BY (r.outcome = 'pass') DESC, r.trial, r.ran_at DESC
        LIMIT 1) AS before ON true
  LEFT JOIN LATERAL (
       SELECT r.output, r.error, r.judge_reason
         FROM eval_run r
        WHERE r.case_id = l.case_id AND r.dataset_id = d.id
          AND r.replay_id IS NOT DISTINCT FROM ns.replay
          AND r.model = ns.model AND r.prompt_rev = ns.prompt_rev
        ORDER BY (r.outcome = 'pass') = (l.category = 'improved') DESC, r.trial, r.ran_at DESC
        LIMIT 1) AS after ON true
 ORDER BY array_position(ARRAY['regressed', 'new_failure', 'flaky', 'unjudged', 'improved', 'removed'], l.category),
          ('regression' = ANY (l.tags)) DESC, l.case_id;
