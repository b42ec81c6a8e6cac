-- How does this run stand: running, finished, failed or cut off? No row where it left no events.
SELECT everyturn_run_status(s.run_id, s.first_id, s.last_id) AS status
  FROM (SELECT e.run_id, min(e.id + 0) AS first_id, max(e.id + 0) AS last_id
          FROM agent_events e
         WHERE e.run_id = :'run_id'::text
         GROUP BY e.run_id) AS s;
