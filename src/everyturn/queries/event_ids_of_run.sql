-- Which events did this run leave within (after, until]? Ids only, so that a run of any length can be read in pages.
SELECT e.id
  FROM agent_events e
 WHERE e.run_id = :'run_id'::text
   AND e.id > :'after'::bigint
   AND (:'until'::bigint IS NULL OR e.id <= :'until'::bigint)
   AND (:'types'::text[] IS NULL OR e.event ->> 'type' = ANY (:'types'::text[]))
 -- Not by the primary key, which would be read from `after` to its end for the few rows of one run.
 ORDER BY e.id + 0;
