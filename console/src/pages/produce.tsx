// Sends one record to a topic.
import { useState } from "preact/hooks";
import { act, Refused } from "../api";
import { Act } from "../shown";

interface Given {
  key: string;
  value: string;
  partition: string;
  headers: [name: string, value: string][];
}

const NOTHING: Given = { key: "", value: "", partition: "", headers: [] };

export function Produce({ path, schema, partitions }: { path: string; schema: string | null; partitions: number }) {
  const [given, setGiven] = useState(NOTHING);
  const [sent, setSent] = useState("");
  const change = (part: Partial<Given>) => {
    setGiven({ ...given, ...part });
    setSent("");
  };
  const header = (place: number, pair: [string, string]) =>
    change({ headers: given.headers.map((each, number) => (number === place ? pair : each)) });
  const send = async () => {
    const made = await act<{ partition: number; offset: number }>(`${path}/records`, {
      key: given.key || null,
      value: schema === null ? given.value : parsed(given.value),
      partition: given.partition === "" ? null : Number(given.partition),
      headers: given.headers.filter(([name]) => name !== ""),
    });
    setSent(`Sent as ${made.partition}/${made.offset}`);
  };
  return (
    <details class="card">
      <summary>Produce a record</summary>
      <div class="bar">
        <label>
          Key of the new record <input value={given.key} onInput={(event) => change({ key: event.currentTarget.value })} />
        </label>
        <label>
          Partition of the new record{" "}
          <select value={given.partition} onChange={(event) => change({ partition: event.currentTarget.value })}>
            <option value="">by its key</option>
            {Array.from({ length: partitions }, (_, number) => (
              <option key={number} value={String(number)}>
                {number}
              </option>
            ))}
          </select>
        </label>
        <label class="wide">
          Value of the new record{schema && ", as JSON"}{" "}
          <textarea rows={3} value={given.value} onInput={(event) => change({ value: event.currentTarget.value })} />
        </label>
      </div>
      {given.headers.map(([name, value], place) => (
        <div class="bar" key={place} role="group" aria-label={`Header ${place + 1}`}>
          <label>
            Name <input value={name} onInput={(event) => header(place, [event.currentTarget.value, value])} />
          </label>
          <label>
            Value <input value={value} onInput={(event) => header(place, [name, event.currentTarget.value])} />
          </label>
          <button type="button" onClick={() => change({ headers: given.headers.filter((_, number) => number !== place) })}>
            Remove header {place + 1}
          </button>
        </div>
      ))}
      <div class="bar">
        <button type="button" onClick={() => change({ headers: [...given.headers, ["", ""]] })}>
          Add a header
        </button>
        <Act label="Send" does={send} primary />
        <span role="status">{sent}</span>
      </div>
    </details>
  );
}

function parsed(value: string): unknown {
  try {
    return JSON.parse(value) as unknown;
  } catch (error) {
    throw new Refused({ kind: "", what: `the value is not JSON: ${String(error)}`, where: null, next: 'such as {"score": 7}' });
  }
}
