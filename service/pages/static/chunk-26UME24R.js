import{m as c}from"./chunk-C7AJXOP3.js";var a="YOUR_KEY";function m(n,t){let e=t?` \\
  -H 'Authorization: Bearer ${a}'`:"",r=JSON.stringify(n,null,2).replaceAll("'","'\\''");return`curl -N ${c()}/v1/chat/completions \\
  -H 'Content-Type: application/json'${e} \\
  -d '${r}'`}function l(n,t){let{stream:e,stream_options:r,...i}=n;return`from openai import OpenAI

client = OpenAI(base_url="${c()}/v1", api_key="${t?a:"none"}")
stream = client.chat.completions.create(
    stream=True,
${Object.entries(i).map(([s,o])=>`    ${s}=${p(o,"    ")},`).join(`
`)}
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
`}function $(n,t){let{stream_options:e,...r}=n;return`import OpenAI from "openai";

const client = new OpenAI({ baseURL: "${c()}/v1", apiKey: "${t?a:"none"}" });
const stream = await client.chat.completions.create(${JSON.stringify(r,null,2)});
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
}
`}function p(n,t){if(n==null)return"None";if(n===!0)return"True";if(n===!1)return"False";if(typeof n=="string")return JSON.stringify(n);if(typeof n=="number")return String(n);let e=`${t}    `,[r,i,s]=Array.isArray(n)?["[","]",n.map(o=>p(o,e))]:["{","}",Object.entries(n).map(([o,f])=>`${JSON.stringify(o)}: ${p(f,e)}`)];return s.length?`${r}
${s.map(o=>`${e}${o},
`).join("")}${t}${i}`:r+i}export{m as a,l as b,$ as c,p as d};
