// The page: its head, which view is shown, and that all of it follows the state.
import { element, fill, showMoment } from "./text.js";
import { state } from "./state.js";
import { addressOf, here } from "./route.js";
import { onTheme } from "./palette.js";
import { overviewView } from "./overview.js";
import { scheduleView } from "./schedule.js";
import { tasksView } from "./tasks.js";
import { taskView } from "./task.js";
import { compareView } from "./compare.js";
import { clusterView } from "./cluster.js";
import { pipelineView } from "./pipeline.js";
import { raceView } from "./race.js";
import { simulationView } from "./simulation.js";
import { stopButton } from "./actions.js";

const VIEWS = { overview: ["Overview", overviewView], schedule: ["Schedule", scheduleView], tasks: ["Tasks", tasksView], compare: ["Compare", compareView], cluster: ["Cluster", clusterView], pipeline: ["Pipeline", pipelineView] };
const HIDDEN = { task: ["Task", taskView] };

const LINKS = {
  connecting: ["Connecting…", "waiting"], live: ["Live", "good"], frozen: ["", ""],
  offline: ["No connection: what is shown may be old. Trying again…", "bad"],
  refused: ["This page is not let in any more: the server was started anew. Open the link that it printed.", "bad"],
};

let current = null, shownView = "";
const main = element("main", { id: "main", tabindex: "-1" });
const navigation = element("nav", { "aria-label": "Views" });
const title = element("h1", {});
const about = element("p", { class: "about" });
const badge = element("span", { class: "badge", role: "status", "aria-live": "polite" });
const controller = element("span", { class: "badge", role: "status", "aria-live": "polite" });
const trouble = element("p", { class: "trouble", role: "alert", hidden: true });
const reading = element("p", { class: "reading", role: "status", hidden: true });
const stores = element("span", {});
const actions = element("span", {});

function drawHead() {
  const { data } = state;
  const name = data?.workloads?.length ? data.workloads.join(", ") : state.isFrozen ? state.about.stores[0] : "nothing yet";
  title.textContent = name;
  document.title = `${HIDDEN[shownView]?.[0] ?? VIEWS[shownView]?.[0] ?? ""} · ${name} · Dovetail`;
  const [text, kind] = LINKS[state.link];
  badge.textContent = text;
  badge.className = `badge ${kind}`;
  if (!data) return;
  const words = [data.machine];
  if (data.as_of) words.push(`last news ${showMoment(data.as_of)}`);
  if (state.isFrozen) words.push(`written ${showMoment(state.frozen.written)}`);
  else words.push(data.store);
  about.textContent = words.join(" · ");
  trouble.hidden = !data.trouble;
  reading.hidden = data.reading == null;
  reading.textContent = reading.hidden ? "" : `Reading the store: ${Math.round(100 * data.reading)}% so far.`;
  trouble.textContent = data.trouble ? `The store cannot be read: ${data.trouble} This page goes on once it can.` : "";
  drawController(data.controller);
}

function drawController(found) {
  controller.hidden = state.isFrozen;
  if (state.isFrozen) return;
  controller.textContent = found ? `Controller runs (process ${found.process})` : "No controller runs";
  controller.className = `badge ${found ? "good" : "waiting"}`;
  fill(actions, state.mayAct ? stopButton() : state.about.read_only ? element("span", { class: "badge waiting" }, "for looking only") : null);
}

function drawNavigation() {
  const links = Object.entries(VIEWS).map(([view, [text]]) =>
    element("a", { href: addressOf(view, state.store ? { store: state.store } : {}), "aria-current": view === shownView ? "page" : undefined }, text));
  fill(navigation, links);
  if (state.about.stores.length > 1) {
    const select = element("select", { "aria-label": "Store", onchange: () => { location.hash = addressOf(shownView === "task" ? "tasks" : shownView, { store: select.value }); } },
      state.about.stores.map((path, number) => element("option", { value: number }, path)));
    select.value = state.store;
    fill(stores, select);
  }
}

function show() {
  const { view, chosen } = here();
  const wanted = Number(chosen.get("store") ?? 0);
  if (!state.isFrozen && wanted !== state.store && wanted < state.about.stores.length) {
    current?.close?.();
    current = null; // shown once there is something of the other store to show
    state.choose(wanted);
    return;
  }
  if (!state.data) return;
  const [, make] = VIEWS[view] ?? HIDDEN[view] ?? VIEWS.overview;
  const isOther = view !== shownView;
  shownView = VIEWS[view] || HIDDEN[view] ? view : "overview";
  current?.close?.();
  fill(main);
  current = make(main);
  drawNavigation();
  drawHead();
  if (isOther) scrollTo(0, 0);
}

function update(event) {
  drawHead();
  if (!current || (event.detail.anew && current.remakes)) { show(); return; }
  current.update?.(event.detail);
}

export async function beginPage() {
  const frozen = document.getElementById("frozen");
  const embedded = frozen ? JSON.parse(frozen.textContent) : null;
  if (embedded?.simulation) { simulationView(document.body, embedded); return; }
  if (embedded?.race) { raceView(document.body, embedded); return; }
  const head = element("header", {},
    element("div", { class: "bar" }, element("span", { class: "brand" }, state.isFrozen || embedded ? "Dovetail report" : "Dovetail"), navigation, stores,
      element("span", { class: "badges" }, badge, controller, actions)),
    title, about, trouble, reading);
  document.body.prepend(element("a", { class: "skip", href: "#main", onclick: (event) => { event.preventDefault(); main.focus(); } }, "Skip to the content"), head, main);
  state.addEventListener("change", update);
  state.addEventListener("link", drawHead);
  addEventListener("hashchange", show);
  onTheme(show);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; current?.resize?.(); } });
  drawHead();
  await state.begin(embedded);
  drawNavigation();
}

beginPage();
