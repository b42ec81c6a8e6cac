-- pgvector type
-- lost: nothing can be found by meaning
-- way out: {pgvector}
CREATE EXTENSION IF NOT EXISTS vector;

SELECT '[1,0]'::vector <=> '[1,0]'::vector = 0 AND vector_dims('[1,2,3]'::vector) = 3;
