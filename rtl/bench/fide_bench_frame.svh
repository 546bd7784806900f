// SPDX-License-Identifier: Apache-2.0
// A frame as bytes, written and hashed byte by byte from the wire's offsets.
  logic [7:0] bytes [2048];
  int unsigned bytes_len;

  task automatic put(input int unsigned at, input int unsigned width, input logic [63:0] value);
    for (int unsigned i = 0; i < width; i++) bytes[at + i] = value[8*(width - 1 - i) +: 8];
  endtask
  function automatic logic [63:0] get(input int unsigned at, input int unsigned width);
    get = '0;
    for (int unsigned i = 0; i < width; i++) get = {get[55:0], bytes[at + i]};
  endfunction
  function automatic logic [511:0] word_of(input int unsigned index);
    word_of = '0;
    for (int unsigned i = 0; i < 64; i++) if (64 * index + i < bytes_len) word_of[8*i +: 8] = bytes[64*index + i];
  endfunction
  function automatic logic [63:0] keep_of(input int unsigned index);
    for (int unsigned i = 0; i < 64; i++) keep_of[i] = 64 * index + i < bytes_len;
  endfunction
  function automatic int unsigned words_of;
    words_of = (bytes_len + 63) / 64;
  endfunction

  // SipHash-2-4 as its authors wrote it, over the frame without its tag.
  logic [63:0] sip0, sip1, sip2, sip3;
  task automatic sip_round;
    sip0 = sip0 + sip1; sip1 = {sip1[50:0], sip1[63:51]}; sip1 = sip1 ^ sip0; sip0 = {sip0[31:0], sip0[63:32]};
    sip2 = sip2 + sip3; sip3 = {sip3[47:0], sip3[63:48]}; sip3 = sip3 ^ sip2;
    sip0 = sip0 + sip3; sip3 = {sip3[42:0], sip3[63:43]}; sip3 = sip3 ^ sip0;
    sip2 = sip2 + sip1; sip1 = {sip1[46:0], sip1[63:47]}; sip1 = sip1 ^ sip2; sip2 = {sip2[31:0], sip2[63:32]};
  endtask
  task automatic tag_of(input logic [127:0] key, output logic [63:0] tag);
    logic [63:0] m;
    int unsigned n;
    sip0 = key[63:0] ^ 64'h736f6d6570736575;
    sip1 = key[127:64] ^ 64'h646f72616e646f6d;
    sip2 = key[63:0] ^ 64'h6c7967656e657261;
    sip3 = key[127:64] ^ 64'h7465646279746573;
    m = '0;
    n = 0;
    for (int unsigned i = 0; i < bytes_len; i++) begin
      if (i >= fide_wire_pkg::TAG_AT && i < fide_wire_pkg::TAG_AT + 8) continue;
      m[8*(n % 8) +: 8] = bytes[i];
      n++;
      if (n % 8 == 0) begin
        sip3 = sip3 ^ m;
        sip_round();
        sip_round();
        sip0 = sip0 ^ m;
        m = '0;
      end
    end
    m[63:56] = n[7:0];
    sip3 = sip3 ^ m;
    sip_round();
    sip_round();
    sip0 = sip0 ^ m;
    sip2 = sip2 ^ 64'hff;
    repeat (4) sip_round();
    tag = sip0 ^ sip1 ^ sip2 ^ sip3;
  endtask
