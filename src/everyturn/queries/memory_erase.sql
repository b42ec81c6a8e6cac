-- Take the content of forgotten memories out of the log: from their own turns, and from every turn that quotes it.
--
-- own            the turns of these memories
-- conversations  the conversations these are in
-- scope          memories of another scope stay as they are; NULL is any
-- quotes         the texts to look for in the whole log; escaped: the same as jsonb prints them
-- near, near_escaped   those to look for in these conversations only, and not in other memories
-- mask           what stands in their place

WITH read AS NOT MATERIALIZED (
    SELECT t.id, t.conversation, t.payload, said.said,
           coalesce(t.payload ->> 'toolName' LIKE 'memory.%' AND NOT t.payload ? 'toolCallId', false) AS is_memory
      FROM agent_turns t,
           LATERAL (SELECT t.payload::text AS said OFFSET 0) AS said  -- printed once, however many texts there are
     WHERE NOT t.id = ANY (:'own'::uuid[])
),
quoting AS MATERIALIZED (
    SELECT r.id, r.payload ->> 'runId' AS run, r.is_memory
      FROM read r
     WHERE EXISTS (SELECT FROM unnest(:'escaped'::text[]) AS q (quote) WHERE strpos(r.said, q.quote) > 0)
       AND (NOT r.is_memory OR :'scope'::text IS NULL OR r.payload ->> 'scope' = :'scope'::text)
       AND everyturn_payload_without(r.payload, :'quotes'::text[], :'mask'::text) <> r.payload
),
beside AS MATERIALIZED (
    SELECT r.id, r.payload ->> 'runId' AS run
      FROM read r
     WHERE r.conversation = ANY (:'conversations'::uuid[])
       AND NOT r.is_memory
       AND EXISTS (SELECT FROM unnest(:'near_escaped'::text[]) AS q (quote) WHERE strpos(r.said, q.quote) > 0)
       AND everyturn_payload_without(r.payload, :'near'::text[], :'mask'::text) <> r.payload
),
own AS MATERIALIZED (
    SELECT t.payload ->> 'runId' AS run
      FROM agent_turns t
     WHERE t.id = ANY (:'own'::uuid[])
),
redacted AS MATERIALIZED (
    SELECT everyturn_redact(:'own'::uuid[], NULL::text[], :'mask'::text) AS own,
           everyturn_redact(ARRAY(SELECT id FROM quoting), :'quotes'::text[], :'mask'::text) AS quoting,
           everyturn_redact(ARRAY(SELECT id FROM beside), :'near'::text[], :'mask'::text) AS beside
)
SELECT r.own + (SELECT count(*) FROM (SELECT id FROM quoting UNION SELECT id FROM beside) AS u) AS turns,
       ARRAY(SELECT id FROM quoting WHERE is_memory) AS memories,
       ARRAY(SELECT run FROM own WHERE run IS NOT NULL UNION SELECT run FROM beside WHERE run IS NOT NULL) AS near_runs,
       ARRAY(SELECT DISTINCT run FROM quoting WHERE run IS NOT NULL) AS runs
  FROM redacted r;
