-- Which cases match, the newest first? Every filter may be NULL.
--
-- tags, any_tags, not_tags   text[]: has all of them, any of them, none of them
-- source, captured_by        as they were captured
-- since, until               captured within [since, until)
-- limit                      how many; NULL for all

SELECT c.id, c.source, c.prompt, c.context, c.reference, c.tags, c.captured_at, c.captured_by, c.turn_id,
       c.content_hash
  FROM eval_case c
 WHERE (:'tags'::text[] IS NULL OR c.tags @> :'tags'::text[])
   AND (:'any_tags'::text[] IS NULL OR c.tags && :'any_tags'::text[])
   AND (:'not_tags'::text[] IS NULL OR NOT c.tags && :'not_tags'::text[])
   AND (:'source'::text IS NULL OR c.source = :'source'::text)
   AND (:'captured_by'::text IS NULL OR c.captured_by = :'captured_by'::text)
   AND (:'since'::timestamptz IS NULL OR c.captured_at >= :'since'::timestamptz)
   AND (:'until'::timestamptz IS NULL OR c.captured_at < :'until'::timestamptz)
 ORDER BY c.captured_at DESC, c.id DESC
 LIMIT :'limit'::bigint;
