import{d as a,e as b}from"./chunk-GP2SDS4S.js";import"./chunk-32FVWCWW.js";import"./chunk-URJOEAD5.js";import"./chunk-SQE76S5B.js";export{b as Example,a as Form};
