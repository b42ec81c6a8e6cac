-- How far has the log come, and which transactions may still add to what lies before?
-- above   a seq below which everything is known
SELECT (SELECT max(t.seq) FROM agent_turns t WHERE t.seq > :'above'::bigint) AS last_seq,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next;
