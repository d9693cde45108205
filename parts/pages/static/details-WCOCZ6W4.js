import{a as N}from"./chunk-TB5IVNAM.js";import{a as E,b as x}from"./chunk-6Z63GQYO.js";import{a as j}from"./chunk-32FVWCWW.js";import{k as C,w as g}from"./chunk-QPWYOB7X.js";import{c as I,f as O}from"./chunk-LTC7HHCB.js";import{b as B,e as k,f as $,h as S,j as r}from"./chunk-URJOEAD5.js";import"./chunk-SQE76S5B.js";var y="YOUR_KEY";function v(t,e){let n=e?` \\
  -H 'Authorization: Bearer ${y}'`:"",i=JSON.stringify(t,null,2).replaceAll("'","'\\''");return`curl -N ${g()}/v1/chat/completions \\
  -H 'Content-Type: application/json'${n} \\
  -d '${i}'`}var w=new Set(["return_token_ids","return_token_logprobs","continue_token_ids","top_k","min_p","repetition_penalty","min_tokens","thinking_token_budget"]),h=(t,e)=>Object.fromEntries(e.filter(n=>t[n]!==void 0).map(n=>[n,t[n]]));function M(t,e){let{stream:n,stream_options:i,...c}=t,s=h(c,[...w]),o=Object.fromEntries(Object.entries(c).filter(([a])=>!(a in s)));return Object.keys(s).length&&(o.extra_body=s),`from openai import OpenAI

client = OpenAI(base_url="${g()}/v1", api_key="${e?y:"none"}")
stream = client.chat.completions.create(
    stream=True,
${Object.entries(o).map(([a,l])=>`    ${a}=${_(l,"    ")},`).join(`
`)}
)
for chunk in stream:
    if chunk.choices:
        delta = chunk.choices[0].delta
        print(delta.content or "", end="", flush=True)
${t.tools?Q:""}`}var Q=`        for call in delta.tool_calls or []:
            print(call.function.name or "", call.function.arguments or "", end="", flush=True)
`,G='  for (const { function: call } of delta?.tool_calls ?? [])\n    process.stdout.write(`${call.name ?? ""} ${call.arguments ?? ""}`);\n';function R(t,e){let{stream_options:n,...i}=t;return`import OpenAI from "openai";

const client = new OpenAI({ baseURL: "${g()}/v1", apiKey: "${e?y:"none"}" });
const stream = await client.chat.completions.create(${JSON.stringify(i,null,2)});
for await (const chunk of stream) {
  const delta = chunk.choices[0]?.delta;
  process.stdout.write(delta?.content ?? "");
${t.tools?G:""}}
`}function _(t,e){if(t==null)return"None";if(t===!0)return"True";if(t===!1)return"False";if(typeof t=="string")return JSON.stringify(t);if(typeof t=="number")return String(t);let n=`${e}    `,[i,c,s]=Array.isArray(t)?["[","]",t.map(o=>_(o,n))]:["{","}",Object.entries(t).map(([o,a])=>`${JSON.stringify(o)}: ${_(a,n)}`)];return s.length?`${i}
${s.map(o=>`${n}${o},
`).join("")}${e}${c}`:i+c}var K=t=>t.messages,L=t=>t.tools??[],P=t=>K(t).find(e=>e.role==="system")?.content,H=t=>K(t).filter(e=>e.role!=="system"),J=t=>t.response_format?.json_schema,A=t=>t?y:"none",T=t=>Object.entries(t).filter(([,e])=>e!==void 0).map(([e,n])=>`    ${e}=${_(n,"    ")},
`).join("");function Y(t,e){let n=H(t).flatMap(({role:o,content:a,tool_calls:l=[],tool_call_id:m})=>{if(o==="tool")return[{type:"function_call_output",call_id:m,output:a}];let f=a?[{role:o,content:a}]:[],d=l.map(({id:p,function:u})=>({type:"function_call",call_id:p,...u}));return[...f,...d]}),i=J(t),c=L(t).map(({type:o,function:a})=>({type:o,...a})),s=T({model:t.model,instructions:P(t)??void 0,input:n,reasoning:{effort:t.reasoning_effort},...h(t,["temperature","top_p"]),max_output_tokens:t.max_completion_tokens,tools:c.length?c:void 0,text:i&&{format:{type:"json_schema",...i}}});return`from openai import OpenAI

client = OpenAI(base_url="${g()}/v1", api_key="${A(e)}")
stream = client.responses.create(
    stream=True,
${s})
for event in stream:
    if event.type in ("response.output_text.delta", "response.function_call_arguments.delta"):
        print(event.delta, end="", flush=True)
`}var V=4096;function D(t,e){let n=H(t).map(({role:a,content:l,tool_calls:m=[],tool_call_id:f})=>{if(a==="tool")return{role:"user",content:[{type:"tool_result",tool_use_id:f,content:l}]};if(!m.length)return{role:a,content:l};let d=m.map(({id:p,function:u})=>({type:"tool_use",id:p,name:u.name,input:JSON.parse(u.arguments||"{}")}));return{role:a,content:[...l?[{type:"text",text:l}]:[],...d]}}),i=L(t).flatMap(({function:a})=>a?[{name:a.name,description:a.description??"",input_schema:a.parameters??{}}]:[]),c=J(t),s=h(t,["temperature","top_p","top_k"]),o=T({model:t.model,max_tokens:t.max_completion_tokens??V,system:P(t)??void 0,messages:n,stop_sequences:t.stop,tools:i.length?i:void 0,output_config:{effort:t.reasoning_effort,...c&&{format:{type:"json_schema",schema:c.schema}}},extra_body:Object.keys(s).length?s:void 0});return`from anthropic import Anthropic

client = Anthropic(base_url="${g()}", api_key="${A(e)}")
with client.messages.stream(
${o}) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
    print(stream.get_final_message().stop_reason)
`}function q(t,e){let{model:n,messages:i,stream:c,stream_options:s,tools:o,response_format:a,...l}=t,m=h(l,[...w]),f=Object.fromEntries(Object.entries(l).filter(([u])=>!(u in m))),d=T({model:n,base_url:`${g()}/v1`,api_key:A(e),...f,extra_body:Object.keys(m).length?m:void 0}),p=T({tools:o,response_format:a});return`from langchain_openai import ChatOpenAI

model = ChatOpenAI(
${d})${p&&`.bind(
${p})`}
for chunk in model.stream(${_(i,"")}):
    print(chunk.text or "", end="", flush=True)
`}function W(t,e){let n=t.slice(0,e).findLastIndex(o=>o.role==="user")+1,i=[],c=0;for(let o of t.slice(n,e+1)){if(o.role!=="assistant"||!o.stats)continue;let{firstTokenMs:a,reasoningMs:l,totalMs:m}=o.stats,f=a??m;s(`Queue and prompt${Z(o)}`,f,"wait"),s("Thinking",l,"think");let d=o.restarts.filter(u=>u.after).reduce((u,U)=>u+U.ms,0);s("Engine restarted",d,"gone");let p=o.calls.map(u=>u.name).join(", ");s(p?`Call of ${p}`:"Answer",m-f-l-d,"write")}return i;function s(o,a,l){a<=0||(i.push({name:o,from:c,ms:a,kind:l}),c+=a)}}function Z({stats:t}){let e=t?.usage;if(!e)return"";let n=e.prompt_tokens_details?.cached_tokens;return`: ${x(e.prompt_tokens)} tokens${n?`, ${x(n)} of them cached`:""}`}function X({turns:t,at:e}){let n=W(t,e),i=n.reduce((s,o)=>s+o.ms,0)||1,c=s=>`${(s/i*100).toFixed(2)}%`;return r("ol",{class:"times",children:n.map((s,o)=>r("li",{children:[r("span",{children:[s.name," ",r("strong",{children:E(s.ms)})]}),r("svg",{class:s.kind,width:"100%",height:"10","aria-hidden":"true",children:r("rect",{x:c(s.from),width:c(s.ms),height:"10"})})]},o))})}var z={curl:v,Python:M,Node:R,Responses:Y,Messages:D,LangChain:q},b=["curl","Python","Node","Responses","Messages","LangChain","Time","Raw"];function $t(t){let e=S(null),[n,i]=k("curl"),c=t.turns[t.at],s=C(t.turns,t.at);return $(()=>e.current.showModal(),[]),r("dialog",{ref:e,class:"details","aria-label":"Request and raw stream",onClose:t.close,onClick:o=>o.target===e.current&&e.current.close(),children:[r("button",{type:"button",class:"close","aria-label":"Close",onClick:()=>e.current.close(),children:r(j,{name:"close"})}),r("div",{class:"tabs",role:"tablist",onKeyDown:o=>i(tt(n,o.key)),children:b.map(o=>r("button",{type:"button",role:"tab",id:`tab-${o}`,"aria-selected":o===n,"aria-controls":"tab-panel",tabIndex:o===n?0:-1,onClick:()=>i(o),children:o},o))}),r("div",{id:"tab-panel",role:"tabpanel","aria-labelledby":`tab-${n}`,children:[n==="Raw"&&r(nt,{turn:c,body:s,apiKey:t.apiKey}),n==="Time"&&r(X,{turns:t.turns,at:t.at}),n in z&&r(et,{text:z[n](s,!!t.apiKey)})]})]})}function tt(t,e){let n={ArrowRight:1,ArrowLeft:-1}[e]??0;return b[(b.indexOf(t)+n+b.length)%b.length]}function et({text:t}){return r("pre",{tabIndex:0,children:[r("code",{children:t}),r(N,{class:"copy",text:()=>t,children:"Copy"})]})}function nt({turn:t,body:e,apiKey:n}){let i=t.tokenIds??[],c=t.events.length?t.events.join(`
`):"Not available after a reload, which keeps only the tokens.";return r(B,{children:[r("div",{class:"raw",children:[r(F,{title:"Prompt in Harmony",ask:()=>st(e,n),of:t}),r(F,{title:"Answer in Harmony",ask:()=>rt(i,n),of:t})]}),r("details",{children:[r("summary",{children:"Raw stream"}),r("pre",{tabIndex:0,children:r("code",{children:c})})]})]})}function F(t){let[e,n]=k("\u2026"),[i,c]=k(null);return $(()=>{t.ask().then(s=>{n(s.prompt),c(s.count)},s=>n(I(s)))},[t.of]),r("section",{children:[r("h3",{children:[t.title,i!==null&&`, ${i} tokens`]}),r("pre",{tabIndex:0,children:r("code",{children:ot(e)})})]})}var ot=t=>t.split(/(<\|\w+\|>)/).map((e,n)=>n%2?r("b",{class:"control",children:e}):e),st=(t,e)=>O("v1/chat/completions/render",t,e);async function rt(t,e){let{prompt:n}=await O("detokenize",{tokens:t},e);return{prompt:n,count:t.length}}export{$t as Details};
