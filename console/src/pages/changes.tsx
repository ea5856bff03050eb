// The changes of a table in a topic as they come, and the history of a key.
import { useEffect, useState } from "preact/hooks";
import { useLive } from "../api";
import { Problem, Sheet, text } from "../shown";

interface Found {
  records: { partition: number; offset: number; timestamp: string; key: string | null; value: unknown }[];
}

const NEWEST = 100;
const HISTORY = 200;

export function Changes({ topic }: { topic: string }) {
  const [filter, setFilter] = useState("");
  const [key, setKey] = useState<string | null>(null);
  const path = `/v1/topics/${encodeURIComponent(topic)}/records`;
  const asked = key === null ? `limit=${NEWEST}` : `limit=${HISTORY}&key=${encodeURIComponent(key)}`;
  const { answer, failure } = useLive<Found>(`${path}?${asked}`);
  return (
    <>
      <h2>{key === null ? "Changes as they come" : `The history of ${key}`}</h2>
      <div class="bar">
        <label>
          Filter <input type="search" value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
        </label>
        {key !== null && (
          <button type="button" onClick={() => setKey(null)}>
            All keys
          </button>
        )}
      </div>
      <Problem failure={failure} />
      <Sheet label="Changes" head={["Time", "Change", "Key", "Row"]}>
        {changesOf(answer?.records ?? [])
          .filter((each) => `${each.key} ${each.row}`.toLowerCase().includes(filter.toLowerCase()))
          .map((each) => (
            <tr key={each.place}>
              <td>{each.time}</td>
              <Sign added={each.added} />
              <td>
                <button type="button" class="link" onClick={() => setKey(each.key)}>
                  {each.key}
                </button>
              </td>
              <td class="value">{each.row}</td>
            </tr>
          ))}
      </Sheet>
    </>
  );
}

function Sign({ added }: { added: boolean }) {
  return <td class={added ? "added" : "removed"}>{added ? "+" : "−"}</td>;
}

const ROW_CHANGES = 100;

/** How the row of a key has changed since it was looked up; null while there is none. */
export function ChangesOfRow({ row }: { row: Record<string, unknown> | null }) {
  const [seen, setSeen] = useState<{ row: string; changes: { time: string; row: string; added: boolean }[] }>({ row: "", changes: [] });
  const now = row === null ? "" : text(row);
  useEffect(() => {
    setSeen((before) => {
      if (now === before.row) return before;
      const time = new Date().toISOString().slice(0, 23).replace("T", " ");
      const both = [{ time, row: now, added: true }, { time, row: before.row, added: false }].filter((each) => each.row !== "");
      return { row: now, changes: [...both, ...before.changes].slice(0, ROW_CHANGES) };
    });
  }, [now]);
  return (
    <>
      <h2>Changes of this row as they come</h2>
      <Sheet label="Changes" head={["Time", "Change", "Row"]}>
        {seen.changes.map((each, number) => (
          <tr key={seen.changes.length - number}>
            <td>{each.time}</td>
            <Sign added={each.added} />
            <td class="value">{each.row}</td>
          </tr>
        ))}
      </Sheet>
    </>
  );
}

/** The newest first: a row that replaces another one, if that is known, takes it away and adds itself. */
function changesOf(records: Found["records"]) {
  const held = new Map<string, string>();
  const made: { place: string; time: string; key: string; row: string; added: boolean }[] = [];
  for (const record of [...records].reverse()) {
    const key = record.key ?? "null";
    const place = `${record.partition}/${record.offset}`;
    const time = record.timestamp.slice(0, 23).replace("T", " ");
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
