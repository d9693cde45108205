// A service worker: the page's files as they last came, where the server cannot be reached. Kept chats stay readable.
declare const FILES: string[];
declare const VERSION: string;

interface Work extends Event {
  waitUntil(work: Promise<unknown>): void;
  request: Request;
  respondWith(answer: Promise<Response>): void;
}

const worker = self as unknown as {
  clients: { claim(): Promise<void> };
  addEventListener(name: string, act: (event: Work) => void): void;
};
const NAME = `harmonium-${VERSION}`;
const [HOME, ASSETS] = ["../", "./"].map((path) => new URL(path, self.location.href).pathname);

worker.addEventListener("install", (event) => {
  event.waitUntil(caches.open(NAME).then((cache) => cache.addAll(["../", ...FILES])));
});

worker.addEventListener("activate", (event) => {
  const others = async () => (await caches.keys()).filter((name) => name.startsWith("harmonium-") && name !== NAME);
  event.waitUntil(others().then((names) => Promise.all([worker.clients.claim(), ...names.map((name) => caches.delete(name))])));
});

/** Only the page's own files; what the API is asked goes by. */
worker.addEventListener("fetch", (event) => {
  const { request } = event;
  const { origin, pathname } = new URL(request.url);
  const isOurs = request.mode === "navigate" ? pathname === HOME : pathname.startsWith(ASSETS!);
  if (request.method !== "GET" || origin !== self.location.origin || !isOurs) return;
  const kept = async (error: unknown) => {
    const found = await caches.match(request, { ignoreSearch: true, ignoreVary: true });
    return found ?? Promise.reject(error);
  };
  event.respondWith(fetch(request).catch(kept));
});
