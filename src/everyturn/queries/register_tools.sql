-- Register an agent's tools; touch a row only when something about it changed.
INSERT INTO agent_tools AS registered (agent, name, schema, impl_hash, rate_budget, description, updated_at)
SELECT :'agent'::text, t.name, t.schema, t.impl_hash, t.rate_budget, t.description, clock_timestamp()
  FROM jsonb_to_recordset(:'tools'::jsonb)
       AS t (name text, schema jsonb, impl_hash text, rate_budget jsonb, description text)
 ORDER BY t.name
ON CONFLICT (agent, name) DO UPDATE
   SET schema      = excluded.schema,
       impl_hash   = excluded.impl_hash,
       rate_budget = excluded.rate_budget,
       description = excluded.description,
       updated_at  = excluded.updated_at
 WHERE (registered.schema, registered.impl_hash, registered.rate_budget, registered.description)
       IS DISTINCT FROM (excluded.schema, excluded.impl_hash, excluded.rate_budget, excluded.description)
RETURNING name;
