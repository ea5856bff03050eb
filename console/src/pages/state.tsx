// The state of a step by key: as it is after the newest batch, and before and after each of the batches before it.
import { useState } from "preact/hooks";
import { ask, type Failure, failureOf, useAnswer } from "../api";
import { count, Problem, Sheet, text } from "../shown";

type Row = Record<string, unknown>;

interface Change {
  what: string;
  old: Row | null;
  new: Row | null;
}

interface OfBatch {
  batch: number;
  clock: string | null;
  tables: Record<string, { counts: Record<string, number>; rows: Change[] }>;
}

interface StateFound {
  step: string;
  batch: number;
  tables: Record<string, Row[]>;
  batches: OfBatch[];
}

const BATCHES = 5;
const SHOWN = 200;

export function StateOfStep({ path }: { path: string }) {
  const plan = useAnswer<{ logical: { name: string; kind: string }[] }>(`${path}/plan`);
  const steps = plan.answer?.logical.filter((each) => each.kind === "state").map((each) => each.name) ?? [];
  const [step, setStep] = useState("");
  const [key, setKey] = useState("");
  const [found, setFound] = useState<StateFound | null>(null);
  const [failure, setFailure] = useState<Failure | null>(null);
  const [busy, setBusy] = useState(false);
  const look = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setFailure(null);
    const query = new URLSearchParams([
      ["step", step || steps[0] || ""],
      ["batches", String(BATCHES)],
      ...key.split(",").map((each) => each.trim()).filter(Boolean).map((each) => ["key", each]),
    ]);
    try {
      setFound(await ask<StateFound>(`${path}/state?${query}`));
    } catch (error) {
      setFailure(failureOf(error));
    }
    setBusy(false);
  };
  return (
    <>
      <Problem failure={plan.failure} />
      {plan.answer && steps.length === 0 && <p>No step of the flow keeps state.</p>}
      {steps.length > 0 && (
        <form class="bar" onSubmit={look}>
          <label>
            Step{" "}
            <select value={step || steps[0]} onChange={(event) => setStep(event.currentTarget.value)}>
              {steps.map((each) => (
                <option key={each}>{each}</option>
              ))}
            </select>
          </label>
          <label>
            Key <input value={key} placeholder="team=red" onInput={(event) => setKey(event.currentTarget.value)} />
          </label>
          <button type="submit" class="primary" disabled={busy}>
            Look up
          </button>
          <span class="faint" role="status">
            {busy ? "Spark reads the checkpoint: this takes some seconds" : ""}
          </span>
        </form>
      )}
      <Problem failure={failure} />
      {found && (
        <>
          <h2>After batch {count(found.batch)}</h2>
          {Object.entries(found.tables).map(([name, rows]) => (
            <div key={name}>
              <h3>{name}</h3>
              <Rows name={name} rows={rows} />
            </div>
          ))}
          <Batches key={`${found.step} ${found.batch}`} of={found.batches} />
        </>
      )}
    </>
  );
}

/** Steps through the newest batches: what each of them changed. */
function Batches({ of }: { of: OfBatch[] }) {
  const [at, setAt] = useState(0);
  const batch = of[at];
  if (!batch) return null;
  const changed = Object.entries(batch.tables).filter(([, table]) => table.rows.length > 0);
  return (
    <section aria-label="Before and after a batch">
      <h2>Before and after batch {count(batch.batch)}</h2>
      <div class="bar">
        <button type="button" disabled={at + 1 >= of.length} onClick={() => setAt(at + 1)}>
          Earlier batch
        </button>
        <button type="button" disabled={at === 0} onClick={() => setAt(at - 1)}>
          Later batch
        </button>
        <span class="faint" role="status">
          {batch.clock && `at ${batch.clock.slice(0, 19).replace("T", " ")}, `}
          {at + 1} of the newest {of.length}
        </span>
      </div>
      {changed.length === 0 && <p class="faint">It changed none of these rows.</p>}
      {changed.map(([name, table]) => (
        <div key={name}>
          <h3>{name}</h3>
          <Changed name={name} rows={table.rows} same={table.counts.same ?? 0} />
        </div>
      ))}
    </section>
  );
}

/** Each row that a batch changed, before it and after it, with the cells that differ. */
function Changed({ name, rows, same }: { name: string; rows: Change[]; same: number }) {
  const columns = [...new Set(rows.flatMap((row) => [...Object.keys(row.old ?? {}), ...Object.keys(row.new ?? {})]))];
  const differs = ({ old, new: after }: Change, column: string) =>
    old !== null && after !== null && text(old[column]) !== text(after[column]);
  return (
    <>
      <Sheet label={`${name}, before and after`} head={["", ...columns]}>
        {rows.slice(0, SHOWN).flatMap((row, number) =>
          ([["\u2212", row.old, "removed"], ["+", row.new, "added"]] as const)
            .filter(([, values]) => values !== null)
            .map(([sign, values, kind]) => (
              <tr key={`${number} ${sign}`}>
                <td class={kind}>{sign}</td>
                {columns.map((column) => (
                  <td key={column} class={`${look(values?.[column])} ${differs(row, column) ? kind : ""}`}>
                    {cell(column, values?.[column])}
                  </td>
                ))}
              </tr>
            )),
        )}
      </Sheet>
      <p class="faint">
        {count(rows.length)} {rows.length === 1 ? "row" : "rows"} changed, {count(same)} not
      </p>
    </>
  );
}

const TIMES = ["start", "end", "in_time_min", "in_time_max"];
const look = (value: unknown): string => (typeof value === "number" ? "number" : "value");

/** A value of state; the bounds of windows are in microseconds since 1970. */
function cell(column: string, value: unknown): string {
  if (!TIMES.includes(column) || typeof value !== "number" || Math.abs(value) > 8.64e18) return text(value);
  return new Date(value / 1000).toISOString().slice(0, 19).replace("T", " ");
}

function Rows({ name, rows }: { name: string; rows: Row[] }) {
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  if (rows.length === 0) return <p class="faint">No rows.</p>;
  return (
    <Sheet label={name} head={columns}>
      {rows.slice(0, SHOWN).map((row, number) => (
        <tr key={number}>
          {columns.map((column) => (
            <td key={column} class={look(row[column])}>
              {cell(column, row[column])}
            </td>
          ))}
        </tr>
      ))}
    </Sheet>
  );
}
