-- Which event was appended last? NULL where there is none.
SELECT max(e.id) AS newest
  FROM agent_events e;
