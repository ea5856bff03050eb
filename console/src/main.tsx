// The shell: where the page is, is in the fragment of its address, such as #/jobs/pumps.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { act, begin } from "./api";
import { Bridges } from "./pages/bridges";
import { Dashboard, Dashboards } from "./pages/dashboards";
import { Job } from "./pages/job";
import { Jobs } from "./pages/jobs";
import { DeadLetterTopic, DeadLetterTopics } from "./pages/letters";
import { Groups, Table, Tables } from "./pages/others";
import { Topic, Topics } from "./pages/topics";
import "./style.css";

const SECTIONS: [string, string][] = [
  ["jobs", "Jobs"],
  ["topics", "Topics"],
  ["groups", "Groups and queues"],
  ["dead-letters", "Dead letters"],
  ["tables", "Tables"],
  ["bridges", "Bridges"],
  ["dashboards", "Dashboards"],
];

function useRoute(): string[] {
  const read = () =>
    location.hash
      .replace(/^#(code=[^/]*)?\/?/, "")
      .split("/")
      .filter(Boolean)
      .map((part) => decodeURIComponent(part));
  const [route, change] = useState(read);
  useEffect(() => {
    const changed = () => change(read());
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  return route;
}

function Page({ route }: { route: string[] }) {
  const [section, name, tab, part] = route;
  if (section === "jobs" && name) return <Job name={name} tab={tab ?? "overview"} part={part} />;
  if (section === "topics") return name ? <Topic key={name} name={name} /> : <Topics />;
  if (section === "groups") return <Groups />;
  if (section === "dead-letters") return name ? <DeadLetterTopic key={name} name={name} /> : <DeadLetterTopics />;
  if (section === "tables") return name ? <Table key={name} name={name} /> : <Tables />;
  if (section === "bridges") return <Bridges />;
  if (section === "dashboards") return name ? <Dashboard key={name} name={name} /> : <Dashboards />;
  return <Jobs />;
}

function Shell({ user }: { user: string }) {
  const route = useRoute();
  const section = route[0] ?? "jobs";
  useEffect(() => {
    document.title = `${route.join(" · ") || "jobs"} · Millstream`;
  }, [route]);
  const leave = async () => {
    await act("/console/logout");
    location.reload();
  };
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => {
        event.preventDefault();
        document.getElementById("main")?.focus();
      }}>
        Skip to the content
      </a>
      <header>
        <a class="brand" href="#/jobs">
          Millstream
        </a>
        <nav aria-label="Sections">
          {SECTIONS.map(([at, label]) => (
            <a key={at} href={`#/${at}`} aria-current={section === at ? "page" : undefined}>
              {label}
            </a>
          ))}
        </nav>
        <span class="user">{user}</span>
        <button type="button" onClick={leave}>
          Log out
        </button>
      </header>
      <main id="main" tabIndex={-1}>
        <Page route={route} />
      </main>
    </>
  );
}

begin().then((user) => {
  if (user) render(<Shell user={user} />, document.getElementById("app")!);
});
