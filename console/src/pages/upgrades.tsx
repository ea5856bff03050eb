// Upgrades of a job: what they would do, a rehearsal of their results, and the way back.
import { useState } from "preact/hooks";
import { act, acts, useLive } from "../api";
import { Act, count, moment, Problem, Sheet, text } from "../shown";

interface Upgrade {
  phase: string;
  savepoint: string;
  steps: Fate[];
  user: string;
  started: number;
  watch_s: number | null;
  reason: string | null;
  file: string;
  file_before: string;
}

interface Fate {
  step: string;
  before: string | null;
  change: string;
  details: string;
}

export function Upgrades({ path, file }: { path: string; file: string }) {
  const { answer, failure } = useLive<Upgrade[]>(`${path}/upgrades`);
  const [given, setGiven] = useState({ file, watch: "10 minutes" });
  const [checked, setChecked] = useState<{ steps: Fate[] } | null>(null);
  const asked = () => ({ file: given.file, watch: given.watch || null });
  return (
    <>
      <Problem failure={failure} />
      {acts && (
        <div class="bar">
          <label class="wide">
            File of the new flow{" "}
            <input value={given.file} onInput={(event) => setGiven({ ...given, file: event.currentTarget.value })} />
          </label>
          <label>
            Watched for{" "}
            <input size={10} value={given.watch} onInput={(event) => setGiven({ ...given, watch: event.currentTarget.value })} />
          </label>
          <Act label="Check" does={async () => setChecked(await act(`${path}/upgrade`, { ...asked(), check: true }))} />
          <Act label="Upgrade" primary does={() => act(`${path}/upgrade`, asked())} />
          <Act label="Go back" does={() => act(`${path}/rollback`)} />
        </div>
      )}
      {acts && <Rehearse path={path} file={given.file} />}
      {checked && (
        <>
          <h2>What becomes of each step</h2>
          <Steps of={checked.steps} />
        </>
      )}
      <h2>Upgrades</h2>
      {answer?.length === 0 && <p class="faint">There were none.</p>}
      {answer && answer.length > 0 && (
        <Sheet label="Upgrades" head={["Started", "By", "Phase", "From", "To", "Savepoint", "Reason"]}>
          {answer.map((each) => (
            <tr key={each.started}>
              <td>{moment(each.started)}</td>
              <td>{each.user}</td>
              <td>{each.phase}</td>
              <td class="value">{each.file_before}</td>
              <td class="value">{each.file}</td>
              <td>{each.savepoint}</td>
              <td>{each.reason ?? ""}</td>
            </tr>
          ))}
        </Sheet>
      )}
    </>
  );
}

function Steps({ of }: { of: Fate[] }) {
  if (of.length === 0) return <p class="faint">No step keeps state.</p>;
  return (
    <Sheet label="Steps" head={["Step", "Before", "State", ""]}>
      {of.map((each) => (
        <tr key={each.step}>
          <th scope="row">{each.step}</th>
          <td>{each.before ?? "–"}</td>
          <td>{each.change}</td>
          <td>{each.details}</td>
        </tr>
      ))}
    </Sheet>
  );
}

interface Output {
  output: string;
  counts: Record<string, number>;
  rows: { what: string; key: Record<string, unknown>; old: unknown; new: unknown }[];
}

interface Rehearsal {
  savepoint: string;
  since: string;
  records: number;
  outputs: Output[];
}

const KINDS = ["same", "changed", "only old", "only new"];
const SHOWN = 200;

/** Both flows over the same records, and the rows of their results that differ. */
function Rehearse({ path, file }: { path: string; file: string }) {
  const [last, setLast] = useState("1 hour");
  const [busy, setBusy] = useState(false);
  const [made, setMade] = useState<Rehearsal | null>(null);
  const rehearse = async () => {
    setBusy(true);
    try {
      setMade(await act<Rehearsal>(`${path}/rehearse`, { file, last }));
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <div class="bar">
        <label>
          Compare the results of the last{" "}
          <input size={10} value={last} onInput={(event) => setLast(event.currentTarget.value)} />
        </label>
        <Act label="Rehearse" does={rehearse} />
        <span class="faint" role="status">
          {busy && "Both flows run from a savepoint: this takes a while"}
          {!busy && made && `${count(made.records)} records since ${made.since.slice(0, 19).replace("T", " ")}, from ${made.savepoint}`}
        </span>
      </div>
      {made && (
        <>
          <Sheet label="Rehearsal" head={["Output", ...KINDS]}>
            {made.outputs.map((each) => (
              <tr key={each.output}>
                <th scope="row">{each.output}</th>
                {KINDS.map((kind) => (
                  <td key={kind} class="number">
                    {count(each.counts[kind])}
                  </td>
                ))}
              </tr>
            ))}
          </Sheet>
          {made.outputs.filter((each) => each.rows.length > 0).map((each) => (
            <Sheet key={each.output} label={`Rows of ${each.output} that differ`} head={["", "Old", "New"]}>
              {each.rows.slice(0, SHOWN).map((row, number) => (
                <tr key={number}>
                  <th scope="row">{row.what}</th>
                  <td class="value">{row.old === null ? "" : text(row.old)}</td>
                  <td class="value">{row.new === null ? "" : text(row.new)}</td>
                </tr>
              ))}
            </Sheet>
          ))}
        </>
      )}
    </>
  );
}
