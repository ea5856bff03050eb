// Dead letters: by reason, one by one with their bytes, tried with a flow, and sent again.
import { useState } from "preact/hooks";
import { act, acts, useAnswer } from "../api";
import { Act, count, Facts, Problem, Sheet, text } from "../shown";
import { Names } from "./topics";
import { Why } from "./why";

interface Listed {
  topic: string;
  job: string;
}

interface Letter {
  partition: number;
  offset: number;
  reason: string;
  at: string | null;
  origin: { topic: string | null; partition: number | null; offset: number | null };
  value: string | null;
  resent: boolean;
}

interface Overview {
  job: string | null;
  reasons: { topic: string | null; reason: string; letters: number; resent: number }[];
  letters: Letter[];
}

interface Rehearsal {
  letters: number;
  taken: number;
  expired: number;
  reasons: { reason: string; letters: number; taken: number; left: Record<string, number> }[];
}

export function DeadLetterTopics() {
  const { answer, failure } = useAnswer<Listed[]>("/v1/dead-letters");
  return (
    <Names
      title="Dead letters"
      names={answer?.map((each) => each.topic) ?? null}
      failure={failure}
      to={(name) => `#/dead-letters/${encodeURIComponent(name)}`}
    />
  );
}

export function DeadLetterTopic({ name }: { name: string }) {
  const path = `/v1/dead-letters/${encodeURIComponent(name)}`;
  const [asked, askAgain] = useState(0);
  const { answer, failure } = useAnswer<Overview>(`${path}?again=${asked}`);
  const [chosen, choose] = useState<Letter | null>(null);
  const [said, say] = useState("");
  const resend = async (place: { partition?: number; offset?: number }) => {
    const done = await act<{ sent: number; already_sent: number; expired: number }>(`${path}/resend`, place);
    const parts = [`sent ${count(done.sent)} again`];
    if (done.already_sent) parts.push(`${count(done.already_sent)} had been sent before`);
    if (done.expired) parts.push(`${count(done.expired)} could not be sent: their records have expired, or their origin is unknown`);
    say(parts.join("; "));
    askAgain((before) => before + 1);
  };
  const waiting = answer?.reasons.reduce((sum, each) => sum + each.letters - each.resent, 0) ?? 0;
  return (
    <>
      <p class="crumbs">
        <a href="#/dead-letters">Dead letters</a>
      </p>
      <h1>{name}</h1>
      <Problem failure={failure} />
      <div class="bar">
        <button type="button" onClick={() => askAgain((before) => before + 1)}>
          Look again
        </button>
        {waiting > 0 && <Act label={`Send all ${count(waiting)} again`} does={() => resend({})} />}
        <span role="status">{said}</span>
      </div>
      {answer && (
        <>
          <h2>By reason</h2>
          <Sheet label="By reason" head={["Letters", "Sent again", "From", "Reason"]}>
            {answer.reasons.map((each) => (
              <tr key={`${each.topic} ${each.reason}`}>
                <td class="number">{count(each.letters)}</td>
                <td class="number">{count(each.resent)}</td>
                <td>{each.topic ?? "–"}</td>
                <td class="value">{each.reason}</td>
              </tr>
            ))}
          </Sheet>
          {acts && answer.letters.length > 0 && <Rehearse path={path} job={answer.job} />}
          <h2>Newest letters</h2>
          {answer.letters.length === 0 && <p class="faint">There are none.</p>}
          {answer.letters.length > 0 && (
            <Sheet label="Newest letters" head={["Letter", "At", "Origin", "Reason", "Value", ""]}>
              {answer.letters.map((letter) => (
                <tr key={`${letter.partition} ${letter.offset}`}>
                  <th scope="row">
                    <button type="button" class="link" onClick={() => choose(letter)}>
                      {letter.partition}/{letter.offset}
                    </button>
                  </th>
                  <td>{letter.at?.slice(0, 19).replace("T", " ") ?? "–"}</td>
                  <td>{originText(letter)}</td>
                  <td class="value">{letter.reason}</td>
                  <td class="value">{text(letter.value).slice(0, 200)}</td>
                  <td>{letter.resent ? "sent again" : <Act label="Send again" does={() => resend({ partition: letter.partition, offset: letter.offset })} />}</td>
                </tr>
              ))}
            </Sheet>
          )}
          {chosen && <OneLetter key={`${chosen.partition} ${chosen.offset}`} letter={chosen} job={answer.job} />}
        </>
      )}
    </>
  );
}

const originText = ({ origin }: Letter): string =>
  origin.topic === null ? "–" : `${origin.topic} ${origin.partition} ${origin.offset}`;

function OneLetter({ letter, job }: { letter: Letter; job: string | null }) {
  const [asks, setAsks] = useState(false);
  const { topic, partition, offset } = letter.origin;
  return (
    <section class="card" aria-label="Dead letter" aria-live="polite">
      <h2>
        Partition {letter.partition}, offset {letter.offset}
      </h2>
      <Facts of={[["Reason", letter.reason], ["Origin", originText(letter)], ["At", letter.at]]} />
      <pre class="value" tabIndex={0} aria-label="Value">
        {letter.value ?? "null"}
      </pre>
      {job && topic !== null && partition !== null && offset !== null && !asks && (
        <button type="button" onClick={() => setAsks(true)}>
          Why dead?
        </button>
      )}
      {asks && (
        <Why path={`/v1/jobs/${encodeURIComponent(job!)}`} question={{ dead: [topic!, partition!, offset!] }} close={() => setAsks(false)} />
      )}
    </section>
  );
}

/** How many letters a flow would take now. */
function Rehearse({ path, job }: { path: string; job: string | null }) {
  const [name, setName] = useState(job ?? "");
  const [file, setFile] = useState("");
  const [made, setMade] = useState<Rehearsal | null>(null);
  const rehearse = async () => setMade(await act<Rehearsal>(`${path}/rehearse`, { job: name, file: file || null }));
  return (
    <>
      <h2>Rehearse</h2>
      <div class="bar">
        <label>
          Job <input value={name} onInput={(event) => setName(event.currentTarget.value)} />
        </label>
        <label>
          File, if not the job's <input value={file} placeholder="/home/me/fixed.py" onInput={(event) => setFile(event.currentTarget.value)} />
        </label>
        <Act label="Rehearse" does={rehearse} />
        <span role="status">
          {made && `${count(made.taken)} of ${count(made.letters)} would be taken${made.expired ? `; ${count(made.expired)} have expired` : ""}`}
        </span>
      </div>
      {made && (
        <Sheet label="Rehearsal" head={["Letters", "Taken", "Reason", "Dead again"]}>
          {made.reasons.map((each) => (
            <tr key={each.reason}>
              <td class="number">{count(each.letters)}</td>
              <td class="number">{count(each.taken)}</td>
              <td class="value">{each.reason}</td>
              <td class="value">{Object.entries(each.left).map(([reason, letters]) => `${reason} (${letters})`).join("; ")}</td>
            </tr>
          ))}
        </Sheet>
      )}
    </>
  );
}
