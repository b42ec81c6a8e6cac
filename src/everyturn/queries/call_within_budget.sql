-- May this tool be called now? If so the call is appended; else retry_after says in how many seconds it may.
SELECT seq, created_at, retry_after
  FROM everyturn_call_within_budget(
           :'id'::uuid, :'conversation'::uuid, :'agent'::text, :'tool'::text, :'payload'::jsonb,
           :'window_seconds'::float8, :'max_calls'::int);
