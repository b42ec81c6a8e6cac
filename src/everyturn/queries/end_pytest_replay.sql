-- Note how a replay that pytest ran has ended, and which cases it came to.
UPDATE eval_replay p
   SET status = :'status'::text, ended_at = clock_timestamp(), case_ids = :'case_ids'::uuid[],
       trials = :'trials'::int
 WHERE p.id = :'id'::uuid;
