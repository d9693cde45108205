// A real OpenID provider on loopback, for client credentials only.
// Reads lines of JSON Web Key Sets (private ones) from stdin: each makes a provider with these
// keys, the first fitting one signing, behind the same URL. Answers each with its issuer.
import http from "node:http";
import readline from "node:readline";
import { Provider } from "oidc-provider";

let handle = (_request, response) => response.writeHead(503).end();
const server = http.createServer((request, response) => handle(request, response));
await new Promise((done) => server.listen(0, "127.0.0.1", done));
const issuer = `http://127.0.0.1:${server.address().port}`;

function serve(keys) {
  const resourceServer = (_ctx, resource) => ({
    scope: "inference models metrics admin",
    audience: "urn:harmonium",
    accessTokenTTL: 60,
    accessTokenFormat: "jwt",
    jwt: { sign: { alg: resource === "urn:es" ? "ES256" : "RS256" } },
  });
  const provider = new Provider(issuer, {
    jwks: keys,
    clients: [
      {
        client_id: "ann",
        client_secret: "ann-secret",
        redirect_uris: [],
        response_types: [],
        grant_types: ["client_credentials"],
        token_endpoint_auth_method: "client_secret_post",
      },
    ],
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => "urn:rs",
        getResourceServerInfo: resourceServer,
      },
    },
  });
  handle = provider.callback();
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  serve(JSON.parse(line));
  console.log(issuer);
}
process.exit(0);
