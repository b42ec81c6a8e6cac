-- Add tags to cases, and take tags away; an added tag comes last.
UPDATE eval_case c
   SET tags = ARRAY(
       SELECT t.tag
         FROM unnest(c.tags || :'add'::text[]) WITH ORDINALITY AS t (tag, place)
        WHERE t.tag <> ALL (:'remove'::text[])
        GROUP BY t.tag
        ORDER BY min(t.place))
 WHERE c.id = ANY (:'ids'::uuid[])
RETURNING id, source, prompt, context, reference, tags, captured_at, captured_by, turn_id, content_hash;
