// What the page knows: everything once, then what changes; or, in a written report, what was frozen into the file. Views ask
// here and nowhere else, so that they are the same in both.

// A connection on which nothing was heard for so long is dead, whatever the browser says; the server beats every 4 s.
const SILENCE_MS = 13_000, RETRY_MS = 2000, LONGEST_RETRY_MS = 30_000;

class PageState extends EventTarget {
  constructor() {
    super();
    this.about = { stores: [], read_only: true, action: "" };
    this.store = 0;
    this.data = null;
    this.tasks = new Map();
    this.link = "connecting";
    this.source = null;
    this.heardAt = 0;
    this.nowAt = null;
    this.retryMs = RETRY_MS;
    this.frozen = null;
    this.changed = new Set();
    this.anew = false;
    this.sequence = 0;
  }

  get isFrozen() { return this.frozen !== null; }
  get mayAct() { return !this.isFrozen && !this.about.read_only && Boolean(this.data?.controller?.listens); }
  get rows() { return this.list ??= [...this.tasks.values()]; }
  name(id) { return this.tasks.get(id)?.name ?? id; }

  /** The server's time, carried on by a clock that nobody sets: this machine's may jump, or be wrong. */
  get now() {
    // Where nothing runs, nothing has gone on since the last news.
    if (this.isFrozen || !this.data?.controller) return this.data?.as_of ?? 0;
    return this.nowAt ? this.nowAt[0] + (performance.now() - this.nowAt[1]) / 1000 : this.data.now;
  }

  async begin(frozen) {
    if (frozen) {
      this.frozen = frozen;
      this.about = { stores: [frozen.title], read_only: true, action: "" };
      this.link = "frozen";
      this.take(frozen.snapshot);
      return;
    }
    setInterval(() => this.checkSilence(), 1000);
    addEventListener("online", () => this.connect());
    await this.connect();
  }

  async choose(store) {
    if (store === this.store) return;
    this.store = store;
    this.data = null;
    this.tasks.clear();
    this.list = null;
    await this.connect();
  }

  /** Load everything, and listen from there on. Whatever goes wrong is tried again. */
  async connect() {
    const sequence = ++this.sequence;
    this.source?.close();
    try {
      const [about, found] = await Promise.all([this.fetched("/api/about"), this.fetched(`/api/${this.store}/snapshot`)]);
      if (sequence !== this.sequence) return;
      this.about = about;
      this.take(found);
      this.listen();
      this.retryMs = RETRY_MS;
    } catch (error) {
      if (sequence !== this.sequence) return;
      this.say(error.status === 401 ? "refused" : "offline");
      setTimeout(() => { if (sequence === this.sequence) this.connect(); }, this.retryMs);
      this.retryMs = Math.min(this.retryMs * 1.5, LONGEST_RETRY_MS);
    }
  }

  listen() {
    this.heardAt = performance.now();
    const source = new EventSource(`/api/${this.store}/events?after=${encodeURIComponent(this.data.mark)}`);
    this.source = source;
    const heard = () => { this.heardAt = performance.now(); this.say("live"); };
    source.addEventListener("open", heard);
    source.addEventListener("beat", (event) => { heard(); this.setClock(Number(event.data)); });
    source.addEventListener("change", (event) => { heard(); this.takeChange(JSON.parse(event.data)); });
    source.addEventListener("anew", () => { heard(); if (source === this.source) this.connect(); });
    source.addEventListener("error", () => {
      this.say("offline");
      // The browser goes on by itself after a lost connection, but not after an answer that it does not like.
      if (source.readyState === EventSource.CLOSED && source === this.source) setTimeout(() => source === this.source && this.connect(), this.retryMs);
    });
  }

  checkSilence() {
    if (this.source && performance.now() - this.heardAt > SILENCE_MS) {
      this.say("offline");
      this.heardAt = performance.now();
      this.connect();
    }
  }

  say(link) {
    if (link === this.link) return;
    this.link = link;
    this.dispatchEvent(new Event("link"));
  }

  setClock(now) { this.nowAt = [now, performance.now()]; }

  /** Everything as it stands, in place of what was known. */
  take(found) {
    const { tasks, ...rest } = found;
    this.data = rest;
    this.tasks = new Map(tasks.map((row) => [row.id, row]));
    this.list = null;
    this.anew = true;
    if (rest.now) this.setClock(rest.now);
    this.announce();
  }

  takeChange({ tasks, ...rest }) {
    Object.assign(this.data, rest);
    if (rest.now) this.setClock(rest.now);
    if (tasks.length) this.list = null;
    for (const row of tasks) {
      this.tasks.set(row.id, row);
      this.changed.add(row.id);
    }
    this.announce();
  }

  // Many changes between two frames are one to the views.
  announce() {
    if (this.pending) return;
    this.pending = true;
    const tell = () => {
      this.pending = false;
      const change = { tasks: this.changed, anew: this.anew };
      this.changed = new Set();
      this.anew = false;
      this.dispatchEvent(new CustomEvent("change", { detail: change }));
    };
    if (document.hidden) setTimeout(tell, 1000); else requestAnimationFrame(tell);
  }

  async fetched(path, options = {}) {
    const response = await fetch(path, { credentials: "same-origin", ...options });
    const answer = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
    if (!response.ok) throw Object.assign(new Error(answer.error ?? `the server answered ${response.status}`), { status: response.status });
    return answer;
  }

  /** What a view needs beyond what all share; in a report, what was frozen of it. */
  async ask(what, given = {}) {
    if (this.isFrozen) return frozenAnswer(this.frozen, what, given);
    const words = new URLSearchParams();
    for (const [name, value] of Object.entries(given)) for (const each of Array.isArray(value) ? value : [value]) words.append(name, each);
    return this.fetched(`/api/${this.store}/${what}?${words}`);
  }

  /** Ask the controller for something; its answer, or why there is none. */
  async act(wanted) {
    return this.fetched(`/api/${this.store}/ask`, {
      method: "POST", body: JSON.stringify(wanted),
      headers: { "content-type": "application/json", "x-dovetail-action": this.about.action },
    });
  }
}

function frozenAnswer(frozen, what, given) {
  const kept = (tasks) => tasks.filter((id) => frozen.curves[id]);
  if (what === "curves") {
    const wanted = new Set([given.metric ?? []].flat());
    const chosen = (curves) => Object.fromEntries(Object.entries(curves).filter(([name]) => !wanted.size || wanted.has(name)));
    return Object.fromEntries(kept([given.task].flat()).map((id) => [id, chosen(frozen.curves[id])]));
  }
  if (what === "sparks") {
    const found = kept([given.task].flat()).filter((id) => frozen.curves[id][given.metric]);
    return Object.fromEntries(found.map((id) => [id, thinned(frozen.curves[id][given.metric].values, 48)]));
  }
  const answers = { plan: frozen.plans[given.number], task: frozen.details[given.id], cluster: frozen.cluster, pipelines: frozen.pipelines, targets: frozen.targets, why: frozen.why };
  if (answers[what] === undefined) throw new Error("This was not written into the report; 'dovetail ui' shows it.");
  return answers[what];
}

const thinned = (values, most) => values.filter((_, place) => place % Math.max(1, Math.floor(values.length / most)) === 0);

export const state = new PageState();
