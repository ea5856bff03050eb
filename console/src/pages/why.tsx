// Why a pane, a late row or a dead letter is what it is, and what another bound would have meant: answers of a replay.
import { useEffect, useRef, useState } from "preact/hooks";
import { ask, type Failure, failureOf, useAnswer } from "../api";
import { Act, count, Facts, Problem, Sheet, text } from "../shown";

/** What is asked, as the address of the answer has it. */
export type Question =
  | { pane: Record<string, unknown>; step: string }
  | { late: [string, number, number]; step: string }
  | { dead: [string, number, number] };

interface Moves {
  batch: number;
  records: { topic: string; partition: number; offset: number; event_time: string }[];
  idle: { source: string; partition: string }[];
  run_ended: boolean;
}

interface PaneAnswer {
  key: Record<string, unknown>;
  window: { start: string | null; end: string | null };
  pane: Record<string, unknown>;
  batch: number;
  clock: string;
  watermark: { before: string | null; after: string | null };
  trigger: string;
  fired: { trigger: string; why: string }[];
  moved_by: Moves | null;
  rows: { topic?: string; partition?: number; offset?: number; batch: number; new: boolean; row: Record<string, unknown> }[];
  replaced: { batch: number; changed: Record<string, { before: unknown; after: unknown }> } | null;
  notes: string[];
}

interface LateAnswer {
  topic: string;
  partition: number;
  offset: number;
  batch: number;
  clock: string;
  steps: {
    step: string;
    row: Record<string, unknown>;
    event_time: string | null;
    watermark: string | null;
    late: boolean;
    windows: {
      window: { start: string; end: string } | null;
      reason: string;
      passed_by?: Moves | null;
      late_by?: string;
      bound?: string[];
      bound_needed?: string | null;
      lateness?: string;
      lateness_needed?: string | null;
    }[];
  }[];
  notes: string[];
}

interface DeadAnswer {
  topic: string;
  partition: number;
  offset: number;
  step: string;
  reason: string;
  batch: number;
  clock: string;
  notes: string[];
}

const ROWS_SHOWN = 100;

function addressOf(path: string, question: Question): string {
  const parts = Object.entries(question).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)]);
  return `${path}/why?${new URLSearchParams(parts)}`;
}

export function Why({ path, question, close }: { path: string; question: Question; close: () => void }) {
  const address = addressOf(path, question);
  const { answer, failure } = useAnswer<unknown>(address);
  const card = useRef<HTMLElement>(null);
  useEffect(() => card.current?.scrollIntoView({ block: "nearest" }), [answer]);
  const title = "pane" in question ? "Why this pane?" : "late" in question ? "Why late?" : "Why dead?";
  return (
    <section class="card why" ref={card} aria-label={title} aria-live="polite">
      <div class="bar">
        <h2>{title}</h2>
        <Act label="Make a test of it" does={() => download(`${address}&test=1`)} looks />
        <button type="button" onClick={close}>
          Close
        </button>
      </div>
      <Problem failure={failure} />
      {!answer && !failure && <p class="faint">Repeating the job's batches…</p>}
      {answer !== null && "pane" in question && <WhyPane answer={answer as PaneAnswer} />}
      {answer !== null && "late" in question && <WhyLate answer={answer as LateAnswer} />}
      {answer !== null && "dead" in question && <WhyDead answer={answer as DeadAnswer} />}
      {(answer as { notes: string[] } | null)?.notes.map((note) => (
        <p key={note} class="faint">
          {note}
        </p>
      ))}
    </section>
  );
}

/** Saves a test that the server wrote. */
async function download(address: string): Promise<void> {
  const made = await ask<{ file: string; text: string }>(address);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([made.text], { type: "text/x-python" }));
  link.download = made.file;
  link.click();
  URL.revokeObjectURL(link.href);
}

function WhyPane({ answer }: { answer: PaneAnswer }) {
  const changed = Object.entries(answer.replaced?.changed ?? {});
  const rows = answer.rows.slice(-ROWS_SHOWN);
  return (
    <>
      <Facts
        of={[
          ["Pane", Object.entries(answer.pane).filter(([name]) => !(name in answer.key) && name !== "window" && name !== "pane").map(([name, value]) => `${name} = ${text(value)}`).join(", ")],
          ["Key", Object.entries(answer.key).map(([name, value]) => `${name} = ${text(value)}`).join(", ") || "–"],
          ["Window", `${time(answer.window.start)} – ${time(answer.window.end)}`],
          ["Sent in batch", `${count(answer.batch)}, at ${time(answer.clock)}`],
          ["Trigger", <code>{answer.trigger}</code>],
          ["Fired because", answer.fired.map((each) => each.why).join("; ")],
          ["Watermark moved by", answer.moved_by ? movesText(answer.moved_by) : "–"],
        ]}
      />
      <h3>{answer.replaced ? `It replaced the pane of batch ${count(answer.replaced.batch)}` : "It replaced no pane"}</h3>
      {changed.length > 0 && (
        <Sheet label="What changed" head={["Column", "Before", "After"]}>
          {changed.map(([name, { before, after }]) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td class="value">{text(before)}</td>
              <td class="value">{text(after)}</td>
            </tr>
          ))}
        </Sheet>
      )}
      <h3>
        {count(answer.rows.length)} rows are in it{answer.rows.length > rows.length && `; the last ${count(rows.length)}`}
      </h3>
      <Sheet label="Rows of the pane" head={["Topic", "Partition", "Offset", "Batch", "", "Row"]}>
        {rows.map((row, number) => (
          <tr key={number}>
            <td>{row.topic ?? "–"}</td>
            <td class="number">{row.partition ?? "–"}</td>
            <td class="number">{count(row.offset)}</td>
            <td class="number">{count(row.batch)}</td>
            <td>{row.new ? "new" : ""}</td>
            <td class="value">{text(row.row)}</td>
          </tr>
        ))}
      </Sheet>
    </>
  );
}

function WhyLate({ answer }: { answer: LateAnswer }) {
  return (
    <>
      <Facts
        of={[
          ["Record", `${answer.topic} ${answer.partition} ${answer.offset}`],
          ["Read in batch", `${count(answer.batch)}, at ${time(answer.clock)}`],
        ]}
      />
      {answer.steps.map((step) => (
        <div key={step.step}>
          <Facts
            of={[
              ["Step", step.step],
              ["Late", step.late ? "yes" : "no"],
              ["Event time", time(step.event_time)],
              ["Watermark when it came", time(step.watermark)],
              ["Row", <code>{text(step.row)}</code>],
            ]}
          />
          {step.windows.map((window) => (
            <Facts
              key={text(window.window)}
              of={[
                ["Window", window.window ? `${time(window.window.start)} – ${time(window.window.end)}` : "–"],
                ["Reason", window.reason],
                ["Passed by", window.passed_by ? movesText(window.passed_by) : "–"],
                ["Late by", window.late_by],
                ["Kept by a bound of", window.bound_needed ? `${window.bound_needed}, instead of ${window.bound?.join(", ")}` : "–"],
                ["Or a lateness of", window.lateness_needed ? `${window.lateness_needed}, instead of ${window.lateness}` : "–"],
              ]}
            />
          ))}
        </div>
      ))}
    </>
  );
}

function WhyDead({ answer }: { answer: DeadAnswer }) {
  return (
    <Facts
      of={[
        ["Record", `${answer.topic} ${answer.partition} ${answer.offset}`],
        ["Step", answer.step],
        ["Reason", answer.reason],
        ["Read in batch", `${count(answer.batch)}, at ${time(answer.clock)}`],
      ]}
    />
  );
}

const time = (instant: string | null): string => instant?.replace("T", " ").replace("+00:00", "") ?? "–";

function movesText(moves: Moves): string {
  const parts = [
    ...moves.records.map((each) => `${each.topic} ${each.partition} ${each.offset} with event time ${time(each.event_time)}`),
    ...moves.idle.map((each) => `partition ${each.partition} of ${each.source} was idle`),
    ...(moves.run_ended ? ["the run ended"] : []),
  ];
  return `batch ${moves.batch}: ${parts.join("; ") || "a step before that had held it back"}`;
}

interface Outcome {
  bound: string;
  rows: number;
  late: number;
  late_share: number;
  windows_closed: number;
}

interface BoundAnswer {
  steps: { step: string; now: Outcome; then: Outcome; added_delay: { mean_s: number | null; max_s: number | null; still_open: number } }[];
  notes: string[];
}

/** What if the bound of the watermark were another? */
export function OtherBound({ path, step }: { path: string; step: string }) {
  const [bound, setBound] = useState("30 seconds");
  const [answer, setAnswer] = useState<BoundAnswer | null>(null);
  const [failure, setFailure] = useState<Failure | null>(null);
  const [busy, setBusy] = useState(false);
  const find = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setFailure(null);
    try {
      setAnswer(await ask<BoundAnswer>(`${path}/why?${new URLSearchParams({ bound, step })}`));
    } catch (error) {
      setFailure(failureOf(error));
    }
    setBusy(false);
  };
  return (
    <>
      <h2>What if the bound were another?</h2>
      <form class="bar" onSubmit={find}>
        <label>
          Bound of the watermark{" "}
          <input value={bound} onInput={(event) => setBound(event.currentTarget.value)} />
        </label>
        <button type="submit" disabled={busy}>
          Compare
        </button>
        <span class="faint" role="status">
          {busy ? "Repeating the job's batches with both…" : ""}
        </span>
      </form>
      <Problem failure={failure} />
      {answer && (
        <Sheet label="Bounds" head={["Bound", "Rows", "Late", "Share", "Windows closed", "Mean delay", "Longest delay", "Still open"]}>
          {answer.steps.flatMap(({ now, then, added_delay: added }) => [
            <tr key="now">
              <th scope="row">{now.bound}, as it is</th>
              <Outcomes of={now} />
              <td colSpan={3} />
            </tr>,
            <tr key="then">
              <th scope="row">{then.bound}</th>
              <Outcomes of={then} />
              <td class="number">{seconds(added.mean_s)}</td>
              <td class="number">{seconds(added.max_s)}</td>
              <td class="number">{count(added.still_open)}</td>
            </tr>,
          ])}
        </Sheet>
      )}
      {answer?.notes.map((note) => (
        <p key={note} class="faint">
          {note}
        </p>
      ))}
    </>
  );
}

function Outcomes({ of }: { of: Outcome }) {
  return (
    <>
      <td class="number">{count(of.rows)}</td>
      <td class="number">{count(of.late)}</td>
      <td class="number">{(100 * of.late_share).toFixed(2)} %</td>
      <td class="number">{count(of.windows_closed)}</td>
    </>
  );
}

const seconds = (value: number | null): string => (value === null ? "–" : `${value > 0 ? "+" : ""}${value.toFixed(1)} s`);
