-- How much is in each table? Exact up to a million rows, from there the planner's estimate.

WITH counted (name, rows) AS (
    SELECT 'agent_turns', CASE WHEN e.reltuples > 1e6 THEN e.reltuples::bigint
                               ELSE (SELECT count(*) FROM agent_turns) END
      FROM pg_class e WHERE e.oid = 'agent_turns'::regclass
    UNION ALL
    SELECT 'agent_events', CASE WHEN e.reltuples > 1e6 THEN e.reltuples::bigint
                                ELSE (SELECT count(*) FROM agent_events) END
      FROM pg_class e WHERE e.oid = 'agent_events'::regclass
    UNION ALL
    SELECT 'agent_evals', CASE WHEN e.reltuples > 1e6 THEN e.reltuples::bigint
                               ELSE (SELECT count(*) FROM agent_evals) END
      FROM pg_class e WHERE e.oid = 'agent_evals'::regclass
    UNION ALL
    SELECT 'agent_tools', (SELECT count(*) FROM agent_tools)
    UNION ALL
    SELECT 'agent_episodic', (SELECT count(*) FROM agent_episodic)
    UNION ALL
    SELECT 'agent_semantic', (SELECT count(*) FROM agent_semantic)
    UNION ALL
    SELECT 'agent_procedural', (SELECT count(*) FROM agent_procedural)
    UNION ALL
    SELECT 'eval_case', (SELECT count(*) FROM eval_case)
    UNION ALL
    SELECT 'eval_dataset', (SELECT count(*) FROM eval_dataset)
    UNION ALL
    SELECT 'eval_replay', (SELECT count(*) FROM eval_replay)
    UNION ALL
    SELECT 'eval_run', CASE WHEN e.reltuples > 1e6 THEN e.reltuples::bigint
                            ELSE (SELECT count(*) FROM eval_run) END
      FROM pg_class e WHERE e.oid = 'eval_run'::regclass
)
SELECT c.name, c.rows, pg_total_relation_size(c.name::regclass) AS bytes
  FROM counted c
 ORDER BY c.name;
