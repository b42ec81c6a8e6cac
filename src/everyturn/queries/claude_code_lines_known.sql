-- Which of these lines of transcripts are in the log already?
SELECT l.key, l.conversation
  FROM claude_code_lines l
 WHERE l.key = ANY (string_to_array(:'keys', ',')::uuid[]);
