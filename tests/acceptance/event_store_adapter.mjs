// The event store of a Node service, by the document the table comes from: the same statements, through `pg`.
// It reads commands, one JSON document a line, and answers each with one.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const { Pool } = createRequire(process.argv[2])("pg");
const pool = new Pool({ host: process.argv[3], port: Number(process.argv[4]), database: process.argv[5], user: process.argv[6] });

const INSERT = `INSERT INTO agent_events
         (run_id, agent_id, agent_name, turn, tool_name, tool_call_id, internal_call_id, event)
       VALUES ($1, $2, $3, $4, $5, $6, $7, $8::jsonb)`;
const SELECT = `SELECT run_id, agent_id, agent_name, turn, tool_name, tool_call_id,
              internal_call_id, event, created_at
       FROM agent_events
       WHERE run_id = $1
       ORDER BY created_at ASC, id ASC`;

const commands = {
  async append(input) {
    await pool.query(INSERT, [
      input.runId,
      input.agentId,
      input.agentName ?? null,
      input.turn ?? null,
      input.toolName ?? null,
      input.toolCallId ?? null,
      input.internalCallId ?? null,
      JSON.stringify(input.event),
    ]);
  },
  async load(runId) {
    const { rows } = await pool.query(SELECT, [runId]);
    return rows.map((row) => ({
      runId: row.run_id,
      agentId: row.agent_id,
      agentName: row.agent_name ?? undefined,
      turn: row.turn ?? undefined,
      toolName: row.tool_name ?? undefined,
      toolCallId: row.tool_call_id ?? undefined,
      internalCallId: row.internal_call_id ?? undefined,
      event: typeof row.event === "string" ? JSON.parse(row.event) : row.event,
      createdAt: row.created_at,
    }));
  },
  async clear(runId) {
    await pool.query("DELETE FROM agent_events WHERE run_id = $1", [runId]);
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [name, argument] = JSON.parse(line);
  try {
    console.log(JSON.stringify({ ok: (await commands[name](argument)) ?? null }));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error) }));
  }
}
await pool.end();
