-- What is stored of this run's stream, as text, in order? Redaction goes through it.
SELECT e.id, e.event::text
  FROM agent_events e
 WHERE e.run_id = :'run_id'::text
 ORDER BY e.id + 0;
