// The changes of a table as they come, and the history of a key: of a topic its records, of a database what its job wrote.
import { useState } from "preact/hooks";
import { useLive } from "../api";
import { count, Problem, Sheet, text } from "../shown";

interface Found {
  records: { partition: number; offset: number; timestamp: string; key: string | null; value: unknown }[];
}

export interface Written {
  changes: {
    number: number;
    batch: number;
    at: string;
    weight: number;
    key: Record<string, unknown> | null;
    row: unknown;
    left_out: number;
  }[];
  complete: boolean;
}

/** A line of the list. */
interface Change {
  place: string;
  time: string;
  key: string;
  row: string;
  added: boolean;
}

const NEWEST = 100;
const HISTORY = 200;

/** Of a table in a topic. */
export function Changes({ topic }: { topic: string }) {
  const [filter, setFilter] = useState("");
  const [key, setKey] = useState<string | null>(null);
  const path = `/v1/topics/${encodeURIComponent(topic)}/records`;
  const asked = key === null ? `limit=${NEWEST}` : `limit=${HISTORY}&key=${encodeURIComponent(key)}`;
  const { answer, failure } = useLive<Found>(`${path}?${asked}`);
  return (
    <>
      <Bar key_={key} filter={filter} setFilter={setFilter} all={() => setKey(null)} />
      <Problem failure={failure} />
      <Sheet label="Changes" head={["Time", "Change", "Key", "Row"]}>
        {changesOf(answer?.records ?? [])
          .filter((each) => `${each.key} ${each.row}`.toLowerCase().includes(filter.toLowerCase()))
          .map((each) => (
            <Line key={each.place} of={each} choose={() => setKey(each.key)} />
          ))}
      </Sheet>
    </>
  );
}

/** Of a table in a database: those that its job has recorded. `looked` is the key that was looked up last. */
export function WrittenChanges({ table, looked }: { table: string; looked: Record<string, string> | null }) {
  const [filter, setFilter] = useState("");
  const [chosen, choose] = useState<{ key: Record<string, unknown> | null; looked: typeof looked }>({ key: null, looked: null });
  const key = chosen.looked === looked ? chosen.key : looked;
  const asked = new URLSearchParams(Object.entries(key ?? {}).map(([column, value]) => [`key.${column}`, text(value)]));
  if (filter) asked.set("text", filter);
  const { answer, failure } = useLive<Written>(`/v1/tables/${encodeURIComponent(table)}/changes?${asked}`);
  return (
    <>
      <Bar key_={key && keyText(key)} filter={filter} setFilter={setFilter} all={() => choose({ key: null, looked })} />
      <Problem failure={failure} />
      {answer?.changes.length === 0 && <p class="faint">None are recorded{(filter || key) && ", of those that are kept"}.</p>}
      <Sheet label="Changes" head={["Time", "Change", "Key", "Row"]}>
        {(answer?.changes ?? []).map((each) =>
          each.key === null ? (
            <tr key={each.number}>
              <td>{timeOf(each.at)}</td>
              <td colSpan={3} class="faint">
                {count(each.left_out)} more changes of batch {each.batch} are not recorded
              </td>
            </tr>
          ) : (
            <Line
              key={`${each.number} ${each.weight}`}
              of={{
                place: "",
                time: timeOf(each.at),
                key: keyText(each.key),
                row: each.row === null ? "(too long to be recorded)" : text(each.row),
                added: each.weight > 0,
              }}
              choose={() => choose({ key: each.key, looked })}
            />
          ),
        )}
      </Sheet>
      {answer && (
        <p class="faint">
          The job records what it writes, of each batch the last 500 changes. The newest 10,000 are kept
          {answer.complete ? ", and all of them are shown." : "; this list is the newest of them."}
        </p>
      )}
    </>
  );
}

const keyText = (key: Record<string, unknown>): string => Object.values(key).map(text).join(", ");
const timeOf = (instant: string): string => instant.slice(0, 23).replace("T", " ");

interface BarGiven {
  key_: string | null;
  filter: string;
  setFilter: (filter: string) => void;
  all: () => void;
}

function Bar({ key_, filter, setFilter, all }: BarGiven) {
  return (
    <>
      <h2>{key_ === null ? "Changes as they come" : `The history of ${key_}`}</h2>
      <div class="bar">
        <label>
          Filter <input type="search" value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
        </label>
        {key_ !== null && (
          <button type="button" onClick={all}>
            All keys
          </button>
        )}
      </div>
    </>
  );
}

function Line({ of, choose }: { of: Change; choose: () => void }) {
  return (
    <tr>
      <td>{of.time}</td>
      <td class={of.added ? "added" : "removed"}>{of.added ? "+" : "−"}</td>
      <td>
        <button type="button" class="link" onClick={choose}>
          {of.key}
        </button>
      </td>
      <td class="value">{of.row}</td>
    </tr>
  );
}

/** The newest first: a row that replaces another one, if that is known, takes it away and adds itself. */
function changesOf(records: Found["records"]) {
  const held = new Map<string, string>();
  const made: Change[] = [];
  for (const record of [...records].reverse()) {
    const key = record.key ?? "null";
    const place = `${record.partition}/${record.offset}`;
    const time = timeOf(record.timestamp);
    const before = held.get(key);
    if (before !== undefined || record.value === null) {
      made.push({ place: `${place} before`, time, key, row: before ?? "", added: false });
    }
    held.delete(key);
    if (record.value === null) continue;
    held.set(key, text(record.value));
    made.push({ place, time, key, row: text(record.value), added: true });
  }
  return made.reverse();
}
