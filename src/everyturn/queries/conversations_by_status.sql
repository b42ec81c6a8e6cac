-- Which conversations are there, and how did each end? One page, the last written to first.
--
-- status   finished   the model's last answer asked for no tool
--          failed     an error ended the run (its stage is model, budget, limit, cancelled, …)
--          running    no ending yet, and a live process holds the conversation
--          crashed    no ending, and nobody holds it: `resume` goes on with it
--          recorded   no ending and no run: turns appended by hand, or memory written outside a run
-- Every filter may be left empty: status, agent (of the first turn), conversation.
-- before   the last_seq of the last row of the page before; empty for the first page
-- limit    how many rows; NULL for all

WITH spans AS (
    SELECT t.conversation, min(t.seq) AS first_seq, max(t.seq) AS last_seq, count(*) AS turns
      FROM agent_turns t
     WHERE nullif(:'conversation'::text, '') IS NULL
        OR t.conversation = nullif(:'conversation'::text, '')::uuid
     GROUP BY t.conversation
),
held AS MATERIALIZED (
    SELECT (l.classid::bigint << 32) | l.objid::bigint AS key
      FROM pg_locks l
     WHERE l.locktype = 'advisory'
       AND l.objsubid = 1
       AND l.granted
       AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
),
judged AS (
    SELECT s.conversation AS id, first_turn.agent, s.turns, first_turn.created_at AS started_at,
           last_turn.created_at AS updated_at, s.last_seq, ending.run_id,
           CASE
               WHEN ending.kind = 'model' AND NOT ending.asks AND NOT ending.incomplete THEN 'finished'
               WHEN ending.kind = 'error' AND NOT ending.of_call THEN 'failed'
               WHEN everyturn_lock_key(s.conversation) IN (SELECT h.key FROM held h) THEN 'running'
               WHEN ending.run_id IS NOT NULL THEN 'crashed'
               ELSE 'recorded'
           END AS status,
           left(first_turn.text, 500) AS prompt
      FROM spans s
     CROSS JOIN LATERAL (
           SELECT t.agent, t.created_at, everyturn_turn_text(t.kind, t.payload) AS text
             FROM agent_turns t
            WHERE t.conversation = s.conversation AND t.seq = s.first_seq) AS first_turn
     CROSS JOIN LATERAL (
           SELECT t.created_at
             FROM agent_turns t
            WHERE t.conversation = s.conversation AND t.seq = s.last_seq) AS last_turn
      -- The last turn that says where the run stands: neither a memory written meanwhile nor a hook that failed.
      LEFT JOIN LATERAL (
           SELECT t.kind, t.payload ->> 'runId' AS run_id,
                  t.payload ->> 'toolCallId' IS NOT NULL AS of_call,
                  coalesce(t.payload ->> 'incomplete', 'false') <> 'false' AS incomplete,
                  jsonb_path_exists(t.payload, '$.toolCalls[*]') AS asks
             FROM agent_turns t
            WHERE t.conversation = s.conversation
              AND NOT (t.kind = 'tool_result' AND t.payload ->> 'toolCallId' IS NULL)
              AND NOT (t.kind = 'error' AND coalesce(t.payload ->> 'stage', '') = 'hook')
            ORDER BY t.seq DESC
            LIMIT 1) AS ending ON true
)
SELECT j.id, j.agent, j.status, j.turns, j.started_at, j.updated_at, j.last_seq, j.run_id, j.prompt
  FROM judged j
 WHERE (nullif(:'status'::text, '') IS NULL OR j.status = :'status'::text)
   AND (nullif(:'agent'::text, '') IS NULL OR j.agent = :'agent'::text)
   AND (nullif(:'before'::text, '') IS NULL OR j.last_seq < nullif(:'before'::text, '')::bigint)
 ORDER BY j.last_seq DESC
 LIMIT :'limit'::bigint;
