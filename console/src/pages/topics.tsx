// Topics: their records as they come or as they are found, what one of them is, and how to add one.
import { useState } from "preact/hooks";
import { acts, ask, type Failure, failureOf, useAnswer, useLive } from "../api";
import { bytes, count, Facts, Problem, Sheet, text } from "../shown";
import { Produce } from "./produce";

const SHOWN = 200;

/** Names, each a link to its own page. */
export function Names({ title, names, failure, to }: { title: string; names: string[] | null; failure: Failure | null; to: (name: string) => string }) {
  const [search, setSearch] = useState("");
  const found = (names ?? []).filter((name) => name.includes(search));
  return (
    <>
      <h1>{title}</h1>
      <Problem failure={failure} />
      <div class="bar">
        <label>
          Search <input type="search" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
        </label>
        <span class="faint" role="status">
          {names ? `${count(found.length)} of ${count(names.length)}` : "Loading…"}
        </span>
      </div>
      <ul class="names">
        {found.slice(0, SHOWN).map((name) => (
          <li key={name}>
            <a href={to(name)}>{name}</a>
          </li>
        ))}
      </ul>
      {found.length > SHOWN && <p class="faint">and {count(found.length - SHOWN)} more: search for a part of the name</p>}
    </>
  );
}

export function Topics() {
  const { answer, failure } = useAnswer<string[]>("/v1/topics");
  return <Names title="Topics" names={answer} failure={failure} to={(name) => `#/topics/${encodeURIComponent(name)}`} />;
}

interface Described {
  schema: string | null;
  codec: string | null;
  compaction: boolean;
  retention: string | null;
  size_bytes: number | null;
  records: number;
  switched_to: string | null;
  partitions: { partition: number; start: number; end: number; size_bytes: number | null; open_transactions: number }[];
}

interface Found {
  records: RecordShown[];
  scanned: number;
  complete: boolean;
}

interface RecordShown {
  partition: number;
  offset: number;
  timestamp: string;
  key: string | null;
  value: unknown;
  headers: [string, string][];
}

const FIELDS: [name: string, label: string, hint: string][] = [
  ["where", "Expression", "score > 10"],
  ["text", "Text", ""],
  ["key", "Key", ""],
  ["partition", "Partition", ""],
  ["offset", "From offset", ""],
  ["since", "From time (UTC)", "2026-01-31T12:00"],
];

export function Topic({ name }: { name: string }) {
  const path = `/v1/topics/${encodeURIComponent(name)}`;
  const described = useLive<Described>(path);
  const [given, setGiven] = useState<Record<string, string>>({});
  const [asked, setAsked] = useState<Found | null>(null);
  const [failure, setFailure] = useState<Failure | null>(null);
  const [chosen, choose] = useState<RecordShown | null>(null);
  const newest = useLive<Found>(asked === null ? `${path}/records` : null);
  const topic = described.answer;
  const found = asked ?? newest.answer;
  const [counted, setCounted] = useState("");
  const find = async (event: Event) => {
    event.preventDefault();
    setFailure(null);
    const query = new URLSearchParams(Object.entries(given).filter(([, value]) => value));
    setCounted(String(query));
    try {
      setAsked(query.size > 0 ? await ask<Found>(`${path}/records?${query}`) : null);
    } catch (error) {
      setFailure(failureOf(error));
    }
  };
  return (
    <>
      <p class="crumbs">
        <a href="#/topics">Topics</a>
      </p>
      <h1>{name}</h1>
      <Problem failure={described.failure} />
      {topic && (
        <Facts
          of={[
            ["Records, at most", count(topic.records)],
            ["Size", topic.size_bytes === null ? "–" : bytes(topic.size_bytes)],
            ["Partitions", count(topic.partitions.length)],
            ["Retention", topic.retention ?? "forever"],
            ["Compacted", topic.compaction ? "yes" : "no"],
            ["Columns", topic.schema ?? "none: bytes"],
          ]}
        />
      )}
      <h2>Records</h2>
      <form class="bar" onSubmit={find}>
        {FIELDS.map(([field, label, hint]) => (
          <label key={field}>
            {label}{" "}
            <input
              value={given[field] ?? ""}
              placeholder={hint}
              size={field === "where" || field === "text" ? 18 : 9}
              onInput={(event) => setGiven({ ...given, [field]: event.currentTarget.value })}
            />
          </label>
        ))}
        <button type="submit" class="primary">
          Find
        </button>
        <button type="button" onClick={() => {
          setGiven({});
          setAsked(null);
          setCounted("");
          setFailure(null);
        }}>
          Newest
        </button>
      </form>
      <Problem failure={failure ?? newest.failure} />
      <p class="faint" role="status">
        {asked
          ? `${count(asked.records.length)} found in ${count(asked.scanned)} records${asked.complete ? "" : "; there are more"}`
          : "The newest records, as they come"}
      </p>
      <OverTime path={`${path}/histogram?${counted}`} />
      {found && found.records.length > 0 && (
        <Sheet label="Records" head={["Offset", "Time", "Key", "Value"]}>
          {found.records.map((record) => (
            <tr key={`${record.partition} ${record.offset}`}>
              <th scope="row">
                <button type="button" class="link" onClick={() => choose(record)}>
                  {record.partition}/{record.offset}
                </button>
              </th>
              <td>{record.timestamp.slice(0, 23).replace("T", " ")}</td>
              <td class="value">{record.key ?? "null"}</td>
              <td class="value">{text(record.value).slice(0, 500)}</td>
            </tr>
          ))}
        </Sheet>
      )}
      {chosen && <OneRecord record={chosen} />}
      {acts && topic && <Produce path={path} schema={topic.schema} partitions={topic.partitions.length} />}
      {topic && (
        <>
          <h2>Partitions</h2>
          <Sheet label="Partitions" head={["Partition", "First offset", "End", "Size", "Open transactions"]}>
            {topic.partitions.map((each) => (
              <tr key={each.partition}>
                <th scope="row">{each.partition}</th>
                <td class="number">{count(each.start)}</td>
                <td class="number">{count(each.end)}</td>
                <td class="number">{each.size_bytes === null ? "–" : bytes(each.size_bytes)}</td>
                <td class="number">{count(each.open_transactions)}</td>
              </tr>
            ))}
          </Sheet>
        </>
      )}
    </>
  );
}

interface Counted {
  from: string | null;
  to: string | null;
  counts: number[];
  found: number;
  scanned: number;
  complete: boolean;
}

/** How many records there are over time. */
function OverTime({ path }: { path: string }) {
  const { answer } = useAnswer<Counted>(path);
  if (!answer?.from || !answer.to) return null;
  const most = Math.max(...answer.counts);
  const [from, to] = [answer.from, answer.to].map((each) => each.slice(0, 19).replace("T", " "));
  return (
    <figure class="over-time">
      <svg
        viewBox={`0 0 ${answer.counts.length * 10} 60`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${count(answer.found)} records from ${from} to ${to}, at most ${count(most)} in a bar`}
      >
        {answer.counts.map((each, number) => (
          <rect key={number} x={number * 10 + 1} width={8} y={60 - (each / most) * 60} height={(each / most) * 60}>
            <title>{count(each)}</title>
          </rect>
        ))}
      </svg>
      <figcaption class="faint">
        <span>{from}</span>
        <span>
          {count(answer.found)} of {answer.complete ? "" : "the "}
          {count(answer.scanned)} records{answer.complete ? "" : " that were read"}
        </span>
        <span>{to}</span>
      </figcaption>
    </figure>
  );
}

function OneRecord({ record }: { record: RecordShown }) {
  return (
    <section class="card" aria-label="Record" aria-live="polite">
      <h2>
        Partition {record.partition}, offset {record.offset}
      </h2>
      <p>
        {record.timestamp} · key <code>{record.key ?? "null"}</code>
      </p>
      {record.headers.length > 0 && (
        <Facts of={record.headers.map(([name, value]) => [name, value])} />
      )}
      <pre class="value" tabIndex={0} aria-label="Value">
        {typeof record.value === "string" ? record.value : JSON.stringify(record.value, null, 2)}
      </pre>
    </section>
  );
}
