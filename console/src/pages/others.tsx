// Groups, queues and tables.
import { useState } from "preact/hooks";
import { act, acts, useLive } from "../api";
import { Act, count, Problem, Sheet, span, text } from "../shown";
import { Changes, WrittenChanges } from "./changes";
import { Names } from "./topics";

interface Group {
  name: string;
  members: number;
  lag: number;
  partitions: { topic: string; partition: number; committed: number | null; lag: number; lag_s: number | null }[];
}

interface Queue {
  name: string;
  topic: string;
  waiting: number | null;
  in_flight: number | null;
  acknowledged: number | null;
  dead: number | null;
  consumers: number | null;
}

export function Groups() {
  const groups = useLive<Group[]>("/v1/groups");
  const queues = useLive<Queue[]>("/v1/queues");
  return (
    <>
      <h1>Groups and queues</h1>
      <Problem failure={groups.failure ?? queues.failure} />
      <h2>Consumer groups</h2>
      {groups.answer?.length === 0 && <p class="faint">No group has read anything yet.</p>}
      {groups.answer && groups.answer.length > 0 && (
        <Sheet label="Consumer groups" head={["Group", "Topic", "Partition", "Committed", "Lag, records", "Lag, time", "Members"]}>
          {groups.answer.flatMap((group) =>
            group.partitions.map((each) => (
              <tr key={`${group.name} ${each.topic} ${each.partition}`}>
                <th scope="row">{group.name}</th>
                <td>{each.topic}</td>
                <td class="number">{each.partition}</td>
                <td class="number">{count(each.committed)}</td>
                <td class="number">{count(each.lag)}</td>
                <td class="number">{each.lag_s === null ? "–" : span(each.lag_s)}</td>
                <td class="number">{count(group.members)}</td>
              </tr>
            )),
          )}
        </Sheet>
      )}
      {acts && groups.answer && groups.answer.length > 0 && <Reset groups={groups.answer} />}
      <h2>Queues</h2>
      {queues.answer?.length === 0 && <p class="faint">There are no queues.</p>}
      {queues.answer && queues.answer.length > 0 && (
        <Sheet label="Queues" head={["Queue", "Topic", "Waiting", "In flight", "Acknowledged", "Dead", "Consumers"]}>
          {queues.answer.map((queue) => (
            <tr key={queue.name}>
              <th scope="row">{queue.name}</th>
              <td>{queue.topic}</td>
              <td class="number">{count(queue.waiting)}</td>
              <td class="number">{count(queue.in_flight)}</td>
              <td class="number">{count(queue.acknowledged)}</td>
              <td class="number">{count(queue.dead)}</td>
              <td class="number">{count(queue.consumers)}</td>
            </tr>
          ))}
        </Sheet>
      )}
    </>
  );
}

interface Moves {
  reset: boolean;
  topic: string;
  partitions: { partition: number; before: number | null; after: number; lag_after: number | null }[];
}

/** Moves a group that is not reading: first it is shown what that would do. */
function Reset({ groups }: { groups: Group[] }) {
  const [given, setGiven] = useState({ group: "", topic: "", to: "earliest" });
  const [moves, setMoves] = useState<Moves | null>(null);
  const group = groups.find((each) => each.name === given.group) ?? groups[0]!;
  const topics = [...new Set(group.partitions.map((each) => each.topic))];
  const topic = topics.includes(given.topic) ? given.topic : (topics[0] ?? "");
  const change = (part: Partial<typeof given>) => {
    setGiven({ ...given, ...part });
    setMoves(null);
  };
  const reset = async (check: boolean) =>
    setMoves(await act<Moves>(`/v1/groups/${encodeURIComponent(group.name)}/reset`, { topic, to: given.to, check }));
  return (
    <details class="card">
      <summary>Reset the offsets of a group</summary>
      <div class="bar">
        <label>
          Group{" "}
          <select value={group.name} onChange={(event) => change({ group: event.currentTarget.value })}>
            {groups.map((each) => (
              <option key={each.name}>{each.name}</option>
            ))}
          </select>
        </label>
        <label>
          Topic{" "}
          <select value={topic} onChange={(event) => change({ topic: event.currentTarget.value })}>
            {topics.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        </label>
        <label>
          To{" "}
          <input value={given.to} placeholder="earliest, latest, an offset or a time" onInput={(event) => change({ to: event.currentTarget.value })} />
        </label>
        <Act label="Try" does={() => reset(true)} />
        {moves && !moves.reset && <Act label="Reset" primary does={() => reset(false)} />}
        <span role="status">{moves?.reset ? "Reset" : ""}</span>
      </div>
      {moves && (
        <Sheet label="What the reset does" head={["Partition", "Reads next", "After the reset", "Lag after it"]}>
          {moves.partitions.map((each) => (
            <tr key={each.partition}>
              <th scope="row">{each.partition}</th>
              <td class="number">{count(each.before)}</td>
              <td class="number">{count(each.after)}</td>
              <td class="number">{count(each.lag_after)}</td>
            </tr>
          ))}
        </Sheet>
      )}
    </details>
  );
}

interface Listed {
  name: string;
  kind: string;
  key: string[];
  job: string | null;
  topic: string | null;
}

export function Tables() {
  const { answer, failure } = useLive<Listed[]>("/v1/tables");
  return (
    <Names
      title="Tables"
      names={answer?.map((each) => each.name) ?? null}
      failure={failure}
      to={(name) => `#/tables/${encodeURIComponent(name)}`}
    />
  );
}

export function Table({ name }: { name: string }) {
  const tables = useLive<Listed[]>("/v1/tables");
  const table = tables.answer?.find((each) => each.name === name);
  const [key, setKey] = useState<Record<string, string>>({});
  const [looked, lookUp] = useState<Record<string, string> | null>(null);
  const asked = looked && `/v1/tables/${encodeURIComponent(name)}?${new URLSearchParams(looked)}`;
  const row = useLive<Record<string, unknown>>(asked);
  const find = (event: Event) => {
    event.preventDefault();
    lookUp({ ...key });
  };
  return (
    <>
      <p class="crumbs">
        <a href="#/tables">Tables</a>
      </p>
      <h1>{name}</h1>
      <Problem failure={tables.failure} />
      {table && (
        <>
          <p class="faint">
            {table.kind}
            {table.job && `, written by the job ${table.job}`}
          </p>
          <form class="bar" onSubmit={find}>
            {table.key.map((column) => (
              <label key={column}>
                {column}{" "}
                <input value={key[column] ?? ""} onInput={(event) => setKey({ ...key, [column]: event.currentTarget.value })} />
              </label>
            ))}
            <button type="submit" class="primary">
              Look up
            </button>
          </form>
        </>
      )}
      <Problem failure={row.failure} />
      {row.answer && !row.failure && (
        <Sheet label="The current row" head={["Column", "Value"]}>
          {Object.entries(row.answer).map(([column, value]) => (
            <tr key={column}>
              <th scope="row">{column}</th>
              <td class="value">{text(value)}</td>
            </tr>
          ))}
        </Sheet>
      )}
      {table?.topic && <Changes topic={table.topic} />}
      {table && !table.topic && <WrittenChanges table={name} looked={looked} />}
    </>
  );
}
