-- What is this database: its name, the server's and pgvector's versions, its size, and the dimension of its vectors?

SELECT current_database() AS name,
       current_setting('server_version') AS postgres,
       (SELECT e.extversion FROM pg_extension e WHERE e.extname = 'vector') AS pgvector,
       current_user AS role,
       pg_database_size(current_database()) AS bytes,
       (SELECT nullif(a.atttypmod, -1)
          FROM pg_attribute a
         WHERE a.attrelid = to_regclass('agent_turns')
           AND a.attname = 'embedding') AS dimensions;
