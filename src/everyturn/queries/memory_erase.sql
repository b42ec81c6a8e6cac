-- Take the content of forgotten memories out of the log: from their own turns, and from every turn that quotes it.
--
-- own            the turns of these memories
-- conversations  the conversations these are in
-- quotes         the texts, the longest first; escaped: the same as jsonb prints them
-- distinctive    a text of fewer characters is looked for in those conversations only
-- mask           what stands in their place

WITH quoting AS MATERIALIZED (
    SELECT t.id, t.payload ->> 'toolName' IN ('memory.remember', 'memory.supersede') AS is_memory
      FROM agent_turns t
     WHERE NOT t.id = ANY (:'own'::uuid[])
       AND EXISTS (
           SELECT FROM unnest(:'quotes'::text[], :'escaped'::text[]) AS q (quote, escaped)
            WHERE strpos(t.payload::text, q.escaped) > 0
              AND (length(q.quote) >= :'distinctive'::int OR t.conversation = ANY (:'conversations'::uuid[])))
)
SELECT everyturn_redact(:'own'::uuid[], NULL::text[], :'mask'::text)
       + everyturn_redact(ARRAY(SELECT q.id FROM quoting q), :'quotes'::text[], :'mask'::text) AS turns,
       (SELECT count(*) FROM quoting q WHERE q.is_memory) AS memories;
