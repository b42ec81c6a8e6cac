-- How far were these transcripts read?
SELECT f.id, f.path, f.position, f.line, f.begun, f.tail, f.state
  FROM claude_code_files f
 WHERE f.id = ANY (:'ids'::uuid[]);
