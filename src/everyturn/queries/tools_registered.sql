-- Which tools are registered, what is each allowed, and when was each last called? One page, by agent and name.
--
-- agent        may be left empty
-- after_agent, after_name   agent and name of the last row of the page before; empty for the first page
-- limit        how many rows; NULL for all

SELECT r.agent, r.name, r.description, r.schema, r.impl_hash, r.rate_budget, r.updated_at,
       (SELECT max(t.created_at)
          FROM agent_turns t
         WHERE t.agent = r.agent
           AND t.payload ->> 'toolName' = r.name) AS last_used_at
  FROM agent_tools r
 WHERE (nullif(:'agent'::text, '') IS NULL OR r.agent = :'agent'::text)
   AND (r.agent, r.name) > (coalesce(:'after_agent'::text, ''), coalesce(:'after_name'::text, ''))
 ORDER BY r.agent, r.name
 LIMIT :'limit'::bigint;
