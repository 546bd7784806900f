// SPDX-License-Identifier: Apache-2.0
// The generator: rounds with a request's words or none, exits and readies, byte by byte with their tags, on every path, while the network
// takes no words for a while. A round has left when its last word was taken on every path, once. A stop leaves nothing that is taken.
module fide_tx_gen_tb;
`include "fide_bench.svh"
`include "fide_bench_frame.svh"

`ifndef TAG_WORDS
`define TAG_WORDS 1
`endif
  localparam int unsigned Paths = 2, MaxBeats = 4, BeatW = $clog2(MaxBeats + 1) + 1;
  logic clear, speak_valid, busy, left, send_exit, send_ready, req_pop;
  logic [511:0] base, req_data;
  logic [127:0] key;
  logic [7:0] paths;
  logic [63:0] now;
  logic [31:0] retry;
  fide_lowi_pkg::speak_t speak;
  logic [3:0] ready_to;
  logic [fide_lowi_pkg::LenW-1:0] req_len;
  logic [BeatW-1:0] req_beat;
  logic [Paths-1:0] tvalid, tready, tlast;
  logic [Paths-1:0][511:0] tdata;
  logic [Paths-1:0][63:0] tkeep;
  logic [Paths-1:0][fide_lowi_pkg::RankW:0] tuser;
  fide_tx_gen #(.Paths(Paths), .MaxBeats(MaxBeats), .FifoDepth(8), .TagWords(`TAG_WORDS)) dut (
    .clk_i(clk), .rst_ni(rst_n), .clear_i(clear), .base_i(base), .key_i(key), .paths_i(paths), .time_i(now), .retry_ns_i(retry),
    .speak_valid_i(speak_valid), .speak_i(speak), .busy_o(busy), .left_o(left), .send_exit_i(send_exit), .send_ready_i(send_ready),
    .ready_to_i(ready_to), .req_len_i(req_len), .req_beat_o(req_beat), .req_data_i(req_data), .req_pop_o(req_pop),
    .m_axis_tvalid_o(tvalid), .m_axis_tready_i(tready), .m_axis_tdata_o(tdata), .m_axis_tkeep_o(tkeep), .m_axis_tlast_o(tlast),
    .m_axis_tuser_o(tuser)
  );

  // The request's words come a clock behind their number, as out of a RAM.
  logic [511:0] request [MaxBeats];
  always @(posedge clk) req_data <= request[req_beat[1:0]];

  logic [7:0] got [Paths][2048];
  int unsigned got_len [Paths], rounds, exits, readies, pops, lefts, spoilt, whole [Paths];
  logic [Paths-1:0] round_out;   // this round's copy has left
  logic speaking;
  logic [47:0] last_number [Paths];
  logic [63:0] tag, stopped_at;

  // A frame that left on a path.
  task automatic judge(input int unsigned path);
    logic is_round;
    logic [47:0] number;
    bytes_len = got_len[path];
    for (int unsigned i = 0; i < bytes_len; i++) bytes[i] = got[path][i];
    got_len[path] = 0;
    `CHECK(bytes_len >= 64, "a frame has its first word")
    tag_of(key, tag);
    if (`TAG_WORDS != 0 && get(fide_wire_pkg::TAG_AT, 8) != tag) begin
      // Only what a stop cut short may have a wrong one.
      `CHECK(stopped_at != 0 && now - stopped_at < 64'd4_000, "the tag")
      spoilt++;
      return;
    end
    if (`TAG_WORDS == 0) `CHECK(get(fide_wire_pkg::TAG_AT, 8) == 0, "no tag")
    `CHECK(get(0, 2) == 64'(fide_wire_pkg::MAGIC) && bytes[2] == {fide_wire_pkg::VERSION, 4'd0}, "magic and version")
    `CHECK(bytes[3][3:0] == base[27:24] && bytes[17] == fide_wire_pkg::CHANNEL_GROUPS, "key and channel")
    for (int unsigned i = 4; i < 64; i++) begin
      if (i < 16 || (i >= 32 && i < 40) || (i >= 48 && i != 54 && i != 55)) `CHECK(bytes[i] == base[8*i +: 8], "what was pre-filled")
    end
    `CHECK(bytes[54] == fide_wire_pkg::ENGINE_LOWI, "the engine")
    number = 48'(get(fide_wire_pkg::NUMBER_AT, 6));
    `CHECK(number > last_number[path], "numbers grow")
    last_number[path] = number;
    is_round = bytes[16] == fide_wire_pkg::KIND_COPY;
    if (is_round) begin
      if (stopped_at != 0 && !speaking) return;
      `CHECK(bytes[55] == fide_wire_pkg::LOWI_ROUND && 32'(bytes[3][7:4]) == path, "a round, of its path")
      `CHECK(speaking && !round_out[path], "a round leaves once on a path")
      `CHECK(get(fide_wire_pkg::SENT_NS_AT, 8) == speak.sent_ns, "its stamp")
      `CHECK(get(fide_wire_pkg::ROUND_AT, 8) == speak.round && get(fide_wire_pkg::INSTANCE_AT, 8) == speak.inst, "round and instance")
      `CHECK(get(fide_wire_pkg::ENTRIES_AT, 2) == 64'(speak.has_batch) && get(82, 2) == 0, "its entries")
      `CHECK(bytes_len == 64 + (speak.has_batch ? 32'(req_len) : 24), "its length")
      `CHECK(get(fide_wire_pkg::BATCH_LEN_AT, 4) == 64'(bytes_len - 88), "the batch's length")
      for (int unsigned i = 88; i < bytes_len; i++) `CHECK(bytes[i] == request[(i - 64) / 64][8*((i - 64) % 64) +: 8], "the batch")
      round_out[path] = 1'b1;
      rounds++;
    end else begin
      `CHECK(bytes[16] == fide_wire_pkg::KIND_MESSAGE && bytes_len == 64 && bytes[3][7:4] == 0, "a message")
      if (bytes[55] == fide_wire_pkg::LOWI_EXIT) exits++;
      else begin
        `CHECK(bytes[55] == fide_wire_pkg::LOWI_READY, "exit or ready")
        readies++;
      end
    end
  endtask

  logic [Paths-1:0] held;
  logic [Paths-1:0][511:0] held_data;
  always @(negedge clk) begin
    #2;
    if (rst_n) begin
      for (int unsigned i = 0; i < Paths; i++) begin
        `CHECK(!held[i] || (tvalid[i] && tdata[i] == held_data[i]), "a word that waits stays as it is")
        held[i] = tvalid[i] && !tready[i];
        held_data[i] = tdata[i];
        if (tvalid[i]) `CHECK(paths[i], "nothing leaves on a path that is not in use")
        if (tvalid[i] && tready[i]) begin
          for (int unsigned b = 0; b < 64; b++) if (tkeep[i][b]) begin
            got[i][got_len[i]] = tdata[i][8*b +: 8];
            got_len[i]++;
          end
          if (tlast[i]) begin
            `CHECK(tuser[i][4] == (got[i][55] == fide_wire_pkg::LOWI_READY && got[i][16] == fide_wire_pkg::KIND_MESSAGE), "to one, or to all")
            if (tuser[i][4]) `CHECK(tuser[i][3:0] == ready_to, "to whom")
            judge(i);
            whole[i]++;
          end
        end
      end
      if (req_pop) pops++;
      if (left) begin
        lefts++;
        `CHECK(speaking && (round_out | ~paths[Paths-1:0]) == '1, "left when every path has taken it")
        speaking = 1'b0;
      end
    end
  end

  int unsigned batches = 0, spoken = 0, stall;
  initial begin
    {clear, speak_valid, send_exit, send_ready, tready, speak, req_len, held} = '0;
    paths = 8'd3;
    ready_to = 4'd5;
    {now, retry, stopped_at} = {64'd1_000, 32'd900, 64'd0};
    {rounds, exits, readies, pops, lefts, spoilt, speaking, round_out} = '0;
    for (int unsigned i = 0; i < Paths; i++) {got_len[i], last_number[i], whole[i]} = '0;
    for (int unsigned i = 0; i < 16; i++) base[32*i +: 32] = $urandom();
    key = {draw64(), draw64()};
    reset();
    for (int unsigned n = 0; n < 1_200; n++) begin
      if (n % 100 == 0) begin
        // Another key, another time; in the end one path alone.
        {send_exit, send_ready, tready} = {2'b00, {Paths{1'b1}}};
        while (busy) tick();
        now = draw64() >> 1;
        retry = one_in(2) ? $urandom() : 32'd900;
        key = {draw64(), draw64()};
        for (int unsigned i = 0; i < 16; i++) base[32*i +: 32] = $urandom();
        for (int unsigned i = 0; i < Paths; i++) {got_len[i], last_number[i]} = '0;
        ready_to = 4'($urandom());
        stopped_at = '0;
        if (n >= 1_000) paths = (n == 1_000) ? 8'd2 : 8'd1;
        reset();
      end
      for (int unsigned i = 0; i < MaxBeats; i++) for (int unsigned j = 0; j < 16; j++) request[i][32*j +: 32] = $urandom();
      speak.has_batch = one_in(2);
      req_len = fide_lowi_pkg::LenW'(40 + 8 * below((64 * MaxBeats - 40) / 8 + 1));
      {speak.round, speak.inst, speak.sent_ns} = {draw64(), draw64(), now};
      {send_exit, send_ready} = one_in(4) ? (one_in(2) ? 2'b10 : 2'b01) : 2'b00;
      stall = below(4);
      speak_valid = 1'b1;
      speaking = 1'b1;
      round_out = '0;
      spoken++;
      batches += 32'(speak.has_batch);
      pops = 0;
      for (int unsigned c = 0; c < 2_000; c++) begin
        for (int unsigned i = 0; i < Paths; i++) tready[i] = stall == 0 || one_in(stall);
        // Now and then a stop in the middle.
        clear = one_in(3_000) && !speak_valid;
        if (clear) begin
          stopped_at = now;
          speaking = 1'b0;
          {send_exit, send_ready} = '0;
        end
        tick();
        now += 64'd4;
        speak_valid = 1'b0;
        if (clear) begin
          clear = 1'b0;
          tready = '1;
          repeat (600) begin
            tick();
            now += 64'd4;
          end
          break;
        end
        if (!speaking) break;
      end
      `CHECK(!speaking, "a round leaves")
      if (stopped_at == 0 || now - stopped_at > 64'd4_000) `CHECK(pops == 32'(speak.has_batch), "a request is taken once")
      if (one_in(3)) repeat (below(300)) begin
        tready = '1;
        tick();
        now += 64'd4;
      end
    end
    `CHECK(lefts > 1_000 && exits > 20 && readies > 20 && batches > 300, "rounds, batches, exits and readies were there")
    $display("fide_tx_gen, %0d words a clock: %0d rounds left, %0d copies, %0d exits, %0d readies, %0d cut short", `TAG_WORDS, lefts, rounds, exits, readies, spoilt);
    done("fide_tx_gen");
  end
endmodule
