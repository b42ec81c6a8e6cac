-- HNSW index
-- lost: searches by vector read every row
-- way out: {pgvector}
CREATE EXTENSION IF NOT EXISTS vector;

CREATE TEMP TABLE doctor_vector (id int, embedding vector(3)) ON COMMIT DROP;

CREATE INDEX ON doctor_vector USING hnsw (embedding vector_cosine_ops);

INSERT INTO doctor_vector VALUES (1, '[1,0,0]'), (2, '[0,1,0]');

SELECT id = 2
  FROM doctor_vector
 ORDER BY embedding <=> '[0,0.9,0.1]'
 LIMIT 1;
