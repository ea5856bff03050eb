// Groups, queues and tables.
import { useState } from "preact/hooks";
import { useLive } from "../api";
import { count, Problem, Sheet, text } from "../shown";
import { Names } from "./topics";

interface Group {
  name: string;
  members: number;
  lag: number;
  partitions: { topic: string; partition: number; committed: number | null; lag: number }[];
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
        <Sheet label="Consumer groups" head={["Group", "Topic", "Partition", "Committed", "Lag, records", "Members"]}>
          {groups.answer.flatMap((group) =>
            group.partitions.map((each) => (
              <tr key={`${group.name} ${each.topic} ${each.partition}`}>
                <th scope="row">{group.name}</th>
                <td>{each.topic}</td>
                <td class="number">{each.partition}</td>
                <td class="number">{count(each.committed)}</td>
                <td class="number">{count(each.lag)}</td>
                <td class="number">{count(group.members)}</td>
              </tr>
            )),
          )}
        </Sheet>
      )}
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

interface Listed {
  name: string;
  kind: string;
  key: string[];
  job: string | null;
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
  const [asked, setAsked] = useState<string | null>(null);
  const row = useLive<Record<string, unknown>>(asked);
  const find = (event: Event) => {
    event.preventDefault();
    setAsked(`/v1/tables/${encodeURIComponent(name)}?${new URLSearchParams(key)}`);
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
    </>
  );
}
