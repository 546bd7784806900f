// SPDX-License-Identifier: Apache-2.0
// SipHash-2-4 of a frame, as wire::mac::Key::frame_tag has it: over the header and the body, without the
// tag between them. Takes the words of the stream, and hashes Words of their 64-bit words each clock: two
// rounds for each. Frames whose length is no multiple of 8 bytes are refused by the parser, so what
// remains behind the last 64-bit word is always nothing but the length.
module fide_siphash
#(
  parameter int unsigned Words = 1   // 1, 2, 4 or 8
) (
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic [127:0] key_i,       // byte 0 lowest

  input  logic         valid_i,
  output logic         ready_o,
  input  logic [511:0] data_i,      // byte 0 lowest
  input  logic [3:0]   words_i,     // 64-bit words in it, 0 to 8
  input  logic         first_i,     // the frame's first word, in which the tag is
  input  logic         last_i,

  output logic         valid_o,     // until the next frame begins
  output logic [63:0]  tag_o        // as it lies in the frame: first byte lowest
);

  if (Words != 1 && Words != 2 && Words != 4 && Words != 8) begin : gen_bad_words
    $fatal(1, "fide_siphash: Words is 1, 2, 4 or 8");
  end
  if (fide_wire_pkg::TAG_AT != 40 || fide_wire_pkg::TAG_LEN != 8) begin : gen_bad_tag
    $fatal(1, "fide_siphash: the tag is the sixth 64-bit word of a frame");
  end

  function automatic logic [63:0] rotl(input logic [63:0] value, input int unsigned by);
    rotl = (value << by) | (value >> (64 - by));
  endfunction

  // One SipRound of {v3, v2, v1, v0}.
  function automatic logic [255:0] sip(input logic [255:0] state);
    logic [63:0] v0, v1, v2, v3;
    {v3, v2, v1, v0} = state;
    v0 = v0 + v1;
    v2 = v2 + v3;
    v1 = rotl(v1, 13) ^ v0;
    v3 = rotl(v3, 16) ^ v2;
    v0 = rotl(v0, 32);
    v2 = v2 + v1;
    v0 = v0 + v3;
    v1 = rotl(v1, 17) ^ v2;
    v3 = rotl(v3, 21) ^ v0;
    v2 = rotl(v2, 32);
    sip = {v3, v2, v1, v0};
  endfunction

  function automatic logic [255:0] compress(input logic [255:0] state, input logic [63:0] word);
    logic [255:0] mixed;
    mixed = sip(sip(state ^ {word, 192'd0}));
    compress = mixed ^ {192'd0, word};
  endfunction

  localparam logic [255:0] Init = {64'h7465646279746573, 64'h6c7967656e657261, 64'h646f72616e646f6d, 64'h736f6d6570736575};

  typedef enum logic [2:0] { StIdle, StRun, StLength, StFinal0, StFinal1, StDone } st_e;
  st_e state_q;
  logic [255:0] v_q, v_run, v_length, v_final;
  logic [511:0] rest_q, fresh;
  logic [3:0] left_q, count;
  logic last_q;
  logic [4:0] hashed_q;   // 64-bit words so far, modulo 32: the length's low byte is 8 times as much

  // Without the tag.
  assign fresh = first_i ? {64'd0, data_i[511:384], data_i[319:0]} : data_i;
  assign count = (first_i && words_i > 4'd5) ? words_i - 4'd1 : words_i;

  always_comb begin
    v_run = v_q;
    for (int unsigned i = 0; i < Words; i++) if (4'(i) < left_q) v_run = compress(v_run, rest_q[64*i +: 64]);
  end
  assign v_length = compress(v_q, {hashed_q, 3'd0, 56'd0}) ^ {64'd0, 64'hff, 128'd0};
  // Two of the four last rounds.
  assign v_final = sip(sip(v_q));

  logic emptied;
  assign emptied = left_q <= 4'(Words);
  assign ready_o = state_q == StIdle || state_q == StDone || (state_q == StRun && emptied && !last_q);

  logic [63:0] sum;
  assign sum = v_q[63:0] ^ v_q[127:64] ^ v_q[191:128] ^ v_q[255:192];
  // The tag is big-endian on the wire.
  for (genvar i = 0; i < 8; i++) begin : gen_tag
    assign tag_o[8*i +: 8] = sum[8*(7-i) +: 8];
  end
  assign valid_o = state_q == StDone;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      state_q <= StIdle;
    end else begin
      unique case (state_q)
        StRun: if (emptied && last_q) state_q <= StLength;
        StLength: state_q <= StFinal0;
        StFinal0: state_q <= StFinal1;
        StFinal1: state_q <= StDone;
        default: ;
      endcase
      if (valid_i && ready_o) state_q <= StRun;
    end
  end

  always_ff @(posedge clk_i) begin
    unique case (state_q)
      StRun: begin
        v_q <= v_run;
        rest_q <= rest_q >> (64 * Words);
        left_q <= emptied ? '0 : left_q - 4'(Words);
      end
      StLength: v_q <= v_length;
      StFinal0, StFinal1: v_q <= v_final;
      default: ;
    endcase
    if (valid_i && ready_o) begin
      rest_q <= fresh;
      left_q <= count;
      last_q <= last_i;
      hashed_q <= (first_i ? 5'd0 : hashed_q) + 5'(count);
      if (first_i) v_q <= Init ^ {key_i, key_i};
    end
  end

endmodule
